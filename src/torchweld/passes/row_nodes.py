"""Large results that are made and used row by row, a few rows at a time.

    before: L = x w;  s, e = comp(L);  g = comp(L, s);  dx = g w';  dw = g' x;  loss = comp(e)
    after:  for each chunk of rows c:  Lc = xc w;  sc, ec = comp(Lc);  gc = comp(Lc, sc)
                                       dxc = gc w';  dw += gc' xc
            dx = cat dxc;  e = cat ec;  loss = comp(e)

L and g are chunks in one place of the arena, one after the other. Library products keep their
rates; kernels of equal chunks are one kernel (`ir/windows.py`). What each row gives is kept and
reduced once, as before; what is added up over all rows (the weight's gradient) is added up in
float32. `ir/row_region.py` says which nodes can be done so, `ir/row_price.py` whether they
should, and in how many chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchweld.core import dtypes
from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Extern,
    Graph,
    IndexMap,
    Load,
    Node,
    Store,
    View,
)
from torchweld.ir.row_map import NotByRows, Span, Steps, chunk_name, spans
from torchweld.ir.row_region import (
    Member,
    Region,
    RowComp,
    RowProduct,
    RowSum,
    matrix_strides,
)
from torchweld.ir.row_sums import ADD, BEGIN
from torchweld.ir.substitute import substitute_comp
from torchweld.rewrite.flow import output_buffers, without_unused_buffers

CAT = "aten.cat.default"


@dataclass(slots=True)
class Chunked:
    """A graph on its way to one without its region. Raises NotByRows from `run` where rows [low,
    high) are no box somewhere."""

    graph: Graph
    region: Region
    bounds: tuple[tuple[int, int], ...]  # of each chunk: first row, end
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def run(self) -> Graph:
        self.buffers = dict(self.graph.buffers)
        before, late = _around(self.graph, self.region)
        for member in self.region.members:
            if isinstance(member, RowComp):
                self.buffers.update((b.name, b) for b in member.parts.buffers)
        chunks = [node for number in range(len(self.bounds)) for node in self._chunk(number)]
        made = (*before, *chunks, *self._whole_sums(), *self._gathered(late), *late)
        return without_unused_buffers(replace(self.graph, nodes=made, buffers=self.buffers))

    def _chunk(self, number: int) -> list[Node]:
        chunk = _Chunk(self, number, *self.bounds[number])
        return [chunk.node(member) for member in self.region.members]

    def _whole_sums(self) -> list[Node]:
        """What was added up in float32, in its own type."""
        sums = [m for m in self.region.members if isinstance(m, RowSum)]
        return [self._narrowed(m) for m in sums if self.is_widened(m)]

    def is_widened(self, member: RowSum) -> bool:
        return self.buffers[member.result].dtype.is_low_precision

    def _narrowed(self, member: RowSum) -> Comp:
        to, result = BodyBuilder(), self.buffers[member.result]
        axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(result.shape))
        index = tuple(axis(a.name) for a in axes)
        value = to.cast(to.load(sum_name(result.name), index, dtypes.f32), result.dtype)
        stores = (Store(result.name, index, value),)
        return Comp(f"{member.node.name}_narrowed", axes, to.body, stores, member.node.origins)

    def _gathered(self, late: Iterable[Node]) -> list[Extern]:
        """Rows that others read, put together."""
        asked = {b for n in late for b in n.reads} | output_buffers(self.graph)
        made = [(b, m) for m in self.region.members for b in m.steps if b in asked]
        return [call for b, m in made for call in self._cats(self.buffers[b], m)]

    def _cats(self, whole: Buffer, member: Member) -> list[Extern]:
        """The chunks of `whole` put together: along its first dimension, or before that along the
        second in groups."""
        steps = member.steps[whole.name]
        if not _in_order(whole, steps):
            raise NotByRows(f"rows of {whole.name} do not lie one after the other")
        parts = [self.buffers[chunk_name(whole.name, k)] for k in range(len(self.bounds))]
        if steps is None or len([s for s in steps if s]) == 1 or parts[0].shape[0] != 1:
            return [self._cat(whole, parts, 0, member)]
        return self._in_groups(whole, parts, steps, member)

    def _in_groups(self, whole: Buffer, parts: list[Buffer], steps, member) -> list[Extern]:
        if len([s for s in steps if s]) > 2 or steps[0] % (self.bounds[0][1] - self.bounds[0][0]):
            raise NotByRows(f"rows of {whole.name} are in more than two dimensions")
        count, calls, groups = len(parts) // whole.shape[0], [], []
        if count == 1:
            return [self._cat(whole, parts, 0, member)]
        for k in range(whole.shape[0]):
            name, shape = f"{whole.name}_group_{k}", (1, *whole.shape[1:])
            group = replace(whole, name=name, shape=shape, strides=dense_like(shape, whole.strides))
            self.buffers[name] = group
            groups.append(group)
            calls.append(self._cat(group, parts[k * count : (k + 1) * count], 1, member))
        return [*calls, self._cat(whole, groups, 0, member)]

    def _cat(self, whole: Buffer, parts: Iterable[Buffer], dim: int, member: Member) -> Extern:
        given = (tuple(b.view for b in parts), dim)
        name, origins = f"{whole.name}_whole", member.node.origins
        return Extern(name, CAT, given, (), (whole.name,), (), origins)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows [low, high)."""

    whole: Chunked
    number: int
    low: int
    high: int

    def node(self, member: Member) -> Node:
        for name, steps in member.steps.items():
            self._begin(self.whole.buffers[name], steps)
        if isinstance(member, RowComp):
            return self._comp(member)
        named = replace(member.node, name=chunk_name(member.node.name, self.number))
        if isinstance(member, RowProduct):
            return self._product(member, named)
        return self._sum(member, named)

    def _begin(self, whole: Buffer, steps: Steps | None) -> None:
        """The buffer of this chunk's part."""
        shape = [length for _, length in self.box(whole, steps)]
        name = chunk_name(whole.name, self.number)
        strides = dense_like(shape, whole.strides)
        self.whole.buffers[name] = replace(whole, name=name, shape=tuple(shape), strides=strides)

    def box(self, buffer: Buffer, steps: Steps | None) -> list[Span]:
        """What this chunk's part is of a whole buffer, along each dimension."""
        if steps is None:
            return [(self.number, 1), *((0, n) for n in buffer.shape[1:])]
        dims = [(s, n) for s, n in zip(steps, buffer.shape) if s]
        order = sorted(dims, reverse=True)
        found = dict(zip((s for s, _ in order), spans(order, self.low, self.high)))
        return [found[s] if s else (0, n) for s, n in zip(steps, buffer.shape)]

    def _comp(self, member: RowComp) -> Comp:
        parts, comp = member.parts, member.parts.rows
        here = [a for a in parts.axes if a.name in comp.extents]
        boxed = spans(((a.step, a.extent) for a in here), self.low, self.high)
        found = dict(zip((a.name for a in here), boxed))
        axes = tuple(replace(a, extent=found[a.name][1]) if a.name in found else a
                     for a in comp.axes)  # fmt: skip
        images = {n: axis(n) + first for n, (first, _) in found.items() if first}
        moved = substitute_comp(comp, axes, images)
        body = tuple(self._here(i) if isinstance(i, Load) else i for i in moved.body)
        stores = tuple(map(self._here, moved.stores))
        name = chunk_name(comp.name, self.number)
        return replace(moved, name=name, body=body, stores=stores)

    def _here(self, access: Load | Store) -> Load | Store:
        """An access to a buffer that is made by chunks, in this chunk's."""
        if access.buffer not in self.whole.region.steps:
            return access
        steps = self.whole.region.steps[access.buffer]
        whole = self.whole.buffers[access.buffer]
        starts = [0] * len(whole.shape) if steps is None else [f for f, _ in self.box(whole, steps)]
        index: IndexMap = tuple(e + -s if s else e for e, s in zip(access.index, starts))
        return replace(access, buffer=chunk_name(access.buffer, self.number), index=index)

    def _product(self, member: RowProduct, named: Extern) -> Extern:
        left = self._rows_of(member.left, 0)
        args = tuple(left if a is member.left else a for a in named.args)
        return replace(named, args=args, outputs=(chunk_name(member.result, self.number),))

    def _sum(self, member: RowSum, named: Extern) -> Extern:
        left, right = self._rows_of(member.left, 1), self._rows_of(member.right, 0)
        result = self.whole.buffers[member.result]
        if self.whole.is_widened(member):
            name = sum_name(result.name)
            strides = dense_like(result.shape, result.strides)
            result = replace(result, name=name, dtype=dtypes.f32, strides=strides)
            self.whole.buffers[name] = result
        if self.number == 0:
            return replace(named, target=BEGIN, args=(left, right), outputs=(result.name,))
        args, mutates = (result.view, left, right), (result.name,)
        return replace(named, target=ADD, args=args, outputs=(None,), mutates=mutates)

    def _rows_of(self, view: View, place: int) -> View:
        """This chunk's rows of a matrix, which are along dimension `place`."""
        shape, strides = list(view.shape), list(view.strides)
        shape[place] = self.high - self.low
        steps = self.whole.region.steps.get(view.buffer)
        if steps is None:
            offset = view.offset + self.low * view.strides[place]
            return replace(view, shape=tuple(shape), offset=offset)
        chunk = self.whole.buffers[chunk_name(view.buffer, self.number)]
        row, column = matrix_strides(chunk, steps)
        strides[place] = row
        strides[1 - place] = column if view.strides[1 - place] else 0
        return View(chunk.name, tuple(shape), tuple(strides))


def sum_name(name: str) -> str:
    return f"{name}_sum"


def dense_like(shape: Iterable[int], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps, in the order of `strides`."""
    shape, found, step = list(shape), {}, 1
    for d in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        found[d], step = step, step * shape[d]
    return tuple(found[d] for d in range(len(shape)))


def _in_order(whole: Buffer, steps: Steps | None) -> bool:
    """Whether the rows lie in memory in their order, with no gaps."""
    rows = [s for s in steps or () if s]
    leading = steps is None or (steps[: len(rows)] == tuple(rows) == tuple(sorted(rows)[::-1]))
    step = 1
    for extent, stride in zip(reversed(whole.shape), reversed(whole.strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return leading


def _around(graph: Graph, region: Region) -> tuple[list[Node], list[Node]]:
    """The nodes before the chunks, and those after."""
    members: Mapping[str, Member] = {m.node.name: m for m in region.members}
    places = [k for k, n in enumerate(graph.nodes) if n.name in members]
    before, late, made = list(graph.nodes[: places[0]]), [], set()
    for node in graph.nodes[places[0] : places[-1] + 1]:
        _check_untouched(node, graph)
        member = members.get(node.name)
        if isinstance(member, RowComp):
            early, final = member.parts.early, member.parts.final
            before += [early] if early else []
            late += [final] if final else []
            made.update(set(node.writes) - set(early.writes if early else ()))
        elif member is not None:
            made.update(node.writes)
        elif made.intersection(node.reads):
            late.append(node)
            made.update(node.writes)
        else:
            before.append(node)
    return before, [*late, *graph.nodes[places[-1] + 1 :]]


def _check_untouched(node: Node, graph: Graph) -> None:
    """Nothing among the region's nodes writes what is there already: they change places."""
    changed = node.mutates if isinstance(node, Extern) else set(node.writes) & set(graph.inputs)
    if changed:
        raise NotByRows(f"{node.name} writes in place among the nodes")
