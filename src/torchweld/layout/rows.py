"""Row strides that cuBLAS likes: rows of 16-bit matrices start at multiples of 16 bytes.

Measured on an H100, [8192, 768] x [768, 50257] and the two products of its gradient, in bfloat16:
with rows of 50257 elements 6.6, 4.5 and 4.3 ms, with a stride of 50304 1.2, 0.9 and 0.7 ms. On a
CPU, MKL and oneDNN differ by less than 5 %.

A temporary is simply given longer strides: kernels take any, and `mm.out` takes a leading
dimension. What the caller gives, or wants back as it is, is copied, where the product gains more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torchweld.core.dtypes import DType
from torchweld.ir.build import copy_comp
from torchweld.ir.nodes import Buffer, Extern, Graph, Node, View, views
from torchweld.ir.row_sums import ROW_SUMS
from torchweld.ir.size import Size, divide, hint, product
from torchweld.rewrite.flow import fixed_buffers, mutated_buffers
from torchweld.targets.target import Target
from torchweld.templates.gemm.price import Prices

ALIGNMENT = 16  # bytes that every row must start at a multiple of
_LINE = 128  # bytes, where it adds little
_LONG_ROW, _SHORT_ROW = 4096, 64  # bytes: padded to whole lines; not padded at all
MARGIN = 2.0  # a copy must gain that many times its cost

# Where the two matrices are among the arguments.
OPERANDS = {
    "aten.mm.default": (0, 1),
    "aten.addmm.default": (1, 2),
    "aten.bmm.default": (0, 1),
    "aten.baddbmm.default": (1, 2),
}
# Its bias joins the product only in a dense result; elsewhere it is written there first.
_WANTS_DENSE = "aten.addmm.default"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of `extent` elements, one after the other, to be `pitch` elements apart."""

    extent: int
    pitch: int

    def move(self, view: View) -> View | None:
        """The same elements once the rows are apart; None if a dimension runs across rows."""
        row, last = _split(view.offset, self.extent)
        offset, strides = None if row is None else row * self.pitch + last, []
        for size, stride in zip(view.shape, view.strides):
            rows = divide(stride, self.extent)
            if rows is None:
                last += (size - 1) * stride
            strides.append(stride if rows is None else rows * self.pitch)
        if offset is None or not isinstance(last, int) or last >= self.extent:
            return None
        return replace(view, strides=tuple(strides), offset=offset)

    def apart(self, buffer: Buffer) -> Buffer:
        window = self.move(buffer.view)
        return replace(buffer, strides=window.strides, slack=self.pitch - self.extent)


def align_temporaries(
    graph: Graph, table: Target, loose_outputs: Iterable[int] = frozenset()
) -> Graph:
    """`graph` with strides that suit what its products read and write, where that takes no copies:
    kernels of ours want aligned rows as the library does. A call that would have to write a bias
    there first must gain more by it."""
    uses = Uses.of(graph, frozenset(loose_outputs))
    chosen: dict[str, Rows] = {}
    for node in filter(is_row_product, graph.nodes):
        off = [v for v in _windows(node, graph) if not _is_aligned(v, graph)]
        for view in (v for v in off if v.buffer not in uses.held):
            rows = _padded_rows(view, graph, uses)
            cost_s = _cost_s(view.buffer, node, graph, uses, table)
            if rows and cost_s <= max(0.0, Prices(graph, table).lost_s(node)):
                chosen[view.buffer] = rows
    return _padded(graph, chosen)


def align_rows(
    graph: Graph, table: Target, loose_outputs: Iterable[int] = frozenset()
) -> Graph:
    """`graph` with strides, and copies where they pay, that suit the products that the library
    makes. `loose_outputs`: positions of outputs that may have any strides, if they are numbers."""
    uses = Uses.of(graph, frozenset(loose_outputs))
    chosen: dict[str, Rows] = {}
    for node in graph.nodes:
        if is_row_product(node):
            chosen |= _worth_it(node, graph, uses, table, chosen)
    return with_rows(graph, chosen, uses)


def with_rows(graph: Graph, chosen: Mapping[str, Rows], uses: Uses) -> Graph:
    """`graph` whose products read and write these buffers with rows apart: copies of those that
    others see."""
    for name in [n for n in chosen if n in uses.held]:
        graph = _with_copy(graph, name)
    names = {n: _copy_name(n) if n in uses.held else n for n in chosen}
    return _padded(graph, {names[n]: rows for n, rows in chosen.items()})


def rows_to_copy(node: Extern, graph: Graph, uses: Uses) -> dict[str, Rows]:
    """What others hold and a product reads in rows that are not aligned: how they are to be apart
    in a copy. Empty where one of them cannot be so, or nothing is to be copied."""
    off = [v for v in _operands(node) if not _is_aligned(v, graph)]
    found = {v.buffer: _padded_rows(v, graph, uses) for v in off if v.buffer in uses.held}
    return {} if None in found.values() else found


def copy_s(name: str, graph: Graph, table: Target) -> float:
    """Of a read and a write of a whole buffer."""
    buffer = graph.buffers[name]
    size = hint(product(buffer.shape), graph.hints) * buffer.dtype.bytes
    return 2 * size / table.dram_bytes_per_s + table.launch_s


@dataclass(frozen=True, slots=True)
class Uses:
    """`held`: buffers that others see as they are. `changing`: written more than once, or by a call
    that changes them: neither padded nor copied."""

    held: frozenset[str]
    changing: frozenset[str]

    @classmethod
    def of(cls, graph: Graph, loose: frozenset[int]) -> Uses:
        calls = [n for n in graph.nodes if isinstance(n, Extern) and not _takes_strides(n)]
        held = fixed_buffers(graph, loose).union(*((*n.reads, *n.writes) for n in calls))
        return cls(frozenset(held), mutated_buffers(graph))


def is_row_product(node: Node) -> bool:
    return isinstance(node, Extern) and node.target in OPERANDS and node.outputs[0] is not None


def _takes_strides(node: Node) -> bool:
    """A product, or a call that adds one up over chunks of rows. That gains as well, but rows are
    not padded for it."""
    return is_row_product(node) or (isinstance(node, Extern) and node.target in ROW_SUMS)


def _worth_it(
    node: Extern, graph: Graph, uses: Uses, table: Target, chosen: dict[str, Rows]
) -> dict[str, Rows]:
    """The buffers to pad for one product: all that are in its way, or none."""
    windows = _windows(node, graph)
    found = {v.buffer: _padded_rows(v, graph, uses) for v in windows if not _is_aligned(v, graph)}
    if None in found.values():
        return {}
    new = [n for n in found if n not in chosen]
    cost_s = sum(_cost_s(n, node, graph, uses, table) for n in new)
    gain_s = Prices(graph, table).apart_gain_s(node)
    return found if cost_s * MARGIN <= gain_s else {}


def _windows(node: Extern, graph: Graph) -> list[View]:
    """Both operands and the result."""
    return [*_operands(node), graph.buffers[node.outputs[0]].view]


def _operands(node: Extern) -> list[View]:
    return [node.args[i] for i in OPERANDS[node.target]]


def _is_aligned(view: View, graph: Graph) -> bool:
    """Whether each of its rows is; those of wider types, and of bytes, nobody pads."""
    dtype = graph.buffers[view.buffer].dtype
    return not dtype.is_low_precision or not _off_places(view, dtype)


def _off_places(view: View, dtype: DType) -> list[Size]:
    """Strides of a view, and its offset, that are not aligned."""
    places = [s for n, s in zip(view.shape, view.strides) if s != 1 and n != 1]
    return [p for p in (*places, view.offset) if divide(p * dtype.bytes, ALIGNMENT) is None]


def _padded_rows(view: View, graph: Graph, uses: Uses) -> Rows | None:
    """The rows of a buffer that begin at multiples of the shortest stride that is not aligned, if
    they are worth padding, and every view of it can follow."""
    buffer = graph.buffers[view.buffer]
    off = _off_places(view, buffer.dtype)
    pitch = min((p for p in off if p in view.strides and isinstance(p, int)), default=0)
    size = pitch * buffer.dtype.bytes
    if view.buffer in uses.changing or size < _SHORT_ROW:
        return None
    unit = _LINE if size >= _LONG_ROW else ALIGNMENT
    rows = Rows(pitch, -(-size // unit) * unit // buffer.dtype.bytes)
    moves = rows.move(buffer.view) is not None and _helps(rows, view, graph)
    return rows if moves else None


def _helps(rows: Rows, view: View, graph: Graph) -> bool:
    """Every window on the buffer can be moved, and this one is aligned then."""
    windows = [v for n in graph.nodes if _takes_strides(n) for v in views(n.args)]
    windows += views(graph.outputs)
    moved = rows.move(view)
    here = [v for v in windows if v.buffer == view.buffer]
    return moved is not None and _is_aligned(moved, graph) and None not in map(rows.move, here)


def _cost_s(name: str, node: Extern, graph: Graph, uses: Uses, table: Target) -> float:
    """What padding a buffer adds: the time of copies, a read and a write each."""
    copies = int(name in uses.held) + int(name in node.writes and node.target == _WANTS_DENSE)
    return copies * copy_s(name, graph, table)


# -- the graph, changed --


def _copy_name(name: str) -> str:
    return f"{name}_rows"


def _with_copy(graph: Graph, name: str) -> Graph:
    """Products read and write a copy of the buffer: made before the first of them, or copied back
    after the one that makes it."""
    whole, nodes, made = graph.buffers[name], [], False
    copy = replace(whole, name=_copy_name(name), frozen=False)
    for node in graph.nodes:
        touches = is_row_product(node) and name in (*node.reads, *node.writes)
        makes = touches and name in node.writes
        if touches and not (makes or made):
            nodes.append(copy_comp(f"copy_{copy.name}", whole, copy, node.origins))
        nodes.append(_renamed(node, name, copy.name) if touches else node)
        if makes:
            nodes.append(copy_comp(f"copy_{name}", copy, whole, node.origins))
        made |= touches
    return replace(graph, nodes=tuple(nodes), buffers={**graph.buffers, copy.name: copy})


def _renamed(node: Extern, name: str, copy: str) -> Extern:
    outputs = tuple(copy if o == name else o for o in node.outputs)
    args = _map_views(node.args, lambda v: replace(v, buffer=copy) if v.buffer == name else v)
    return replace(node, args=args, outputs=outputs)


def _padded(graph: Graph, rows: dict[str, Rows]) -> Graph:
    """The rows of these buffers are apart, for everyone who names them."""

    def move(view: View) -> View:
        return rows[view.buffer].move(view) if view.buffer in rows else view

    buffers = {n: rows[n].apart(b) if n in rows else b for n, b in graph.buffers.items()}
    nodes = tuple(
        replace(n, args=_map_views(n.args, move)) if _takes_strides(n) else n for n in graph.nodes
    )
    return replace(graph, buffers=buffers, nodes=nodes, outputs=_map_views(graph.outputs, move))


def _map_views(args: tuple, change) -> tuple:
    return tuple(change(a) if isinstance(a, View) else a for a in args)


def _split(offset: Size, extent: int) -> tuple[Size | None, int]:
    """Row and column of an offset; no row if it cannot be told."""
    if isinstance(offset, int):
        return offset // extent, offset % extent
    return divide(offset, extent), 0
