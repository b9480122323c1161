"""Statistics of norms over many pixels, apart from where they are applied, on a GPU.

    before: comp y [g, c, p] { m, s = welford over c, p of x[g, c, p]; store y[g, c, p] f(x, m, s) }
    after:  comp s [g, c, p] { store m[g], r[g] };  comp y [g, c, p] { store y[g, c, p] f(x, m, r) }

A row that no multiprocessor can hold is read twice in any case. Apart, its application joins what
follows it; the planner joins the two again where that is best.

Groups of few channels lie in short pieces where channels are innermost. There each channel has its
statistics first, which neighbours read together, and a small kernel merges those of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.core.device import DeviceTable
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Graph,
    Load,
    Node,
    Pick,
    Reduce,
    Store,
    Value,
    needed,
    store_operands,
)
from torchweld.ir.size import Size, hint, product
from torchweld.plan.cut import cut
from torchweld.plan.inline import Place, copy_instr, copy_store
from torchweld.plan.moves import is_pointwise
from torchweld.plan.tidy import tidy

_SHORT_PIECE = 32  # elements


def statistics_apart(graph: Graph, table: DeviceTable) -> Graph:
    """`graph` with such norms in two Comps, or three."""
    if table.kind != "cuda":
        return graph
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    for node in graph.nodes:
        parts, between = _parts(node, graph, table) or ((node,), ())
        nodes += parts
        buffers.update((b.name, b) for b in between)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _parts(
    node: Node, graph: Graph, table: DeviceTable
) -> tuple[tuple[Comp, ...], tuple[Buffer, ...]] | None:
    reduces = [i for i in node.body if isinstance(i, Reduce)] if isinstance(node, Comp) else []
    if len(reduces) != 1 or reduces[0].monoid != "welford":
        return None
    length = product(node.extent(a) for a in reduces[0].axes)
    if hint(length, graph.hints) <= table.max_columns:
        return None
    device = graph.buffers[node.writes[0]].device
    first, rest, between = cut(node, device) or (None, None, [])
    if first is None or not is_pointwise(rest):
        return None
    channels = _channels(first, reduces[0], graph)
    if channels is None:
        return (first, rest), tuple(between)
    each, merged, more = _by_channel(first, channels, device)
    return (each, merged, rest), (*between, *more)


def _channels(comp: Comp, reduce: Reduce, graph: Graph) -> str | None:
    """The reduced axis along which memory runs, if it is short and no other goes on there."""
    if len(reduce.axes) < 2:
        return None
    loads = [i for i in comp.body if isinstance(i, Load)]
    steps = [_steps(i, graph.buffers[i.buffer]) for i in loads]
    wide = [s for s in steps if s.keys() >= set(reduce.axes)]  # not a parameter of channels
    inner = {next((a for a in reduce.axes if s[a] == 1), None) for s in wide}
    found = inner.pop() if len(inner) == 1 else None
    length = comp.extent(found) if found else None
    if not isinstance(length, int) or not 1 < length < _SHORT_PIECE:
        return None
    return None if any(length == s[a] for s in wide for a in reduce.axes) else found


def _steps(load: Load, buffer: Buffer) -> dict[str, Size]:
    """Elements between neighbours along each axis."""
    return {
        name: i.coefficient(name) * stride
        for i, stride in zip(load.index, buffer.strides)
        if isinstance(i, Affine)
        for name in i.axes
    }


@dataclass(frozen=True, slots=True)
class _Names:
    mean: str
    squares: str


def _by_channel(comp: Comp, channel: str, device: str) -> tuple[Comp, Comp, tuple[Buffer, Buffer]]:
    """The statistics of each channel, and `comp` with those of its group merged from them."""
    value = next(v for v, i in enumerate(comp.body) if isinstance(i, Reduce))
    reduce = comp.body[value]
    pixels = tuple(a for a in reduce.axes if a != channel)
    rows = tuple(a for a in comp.axes if a.name not in pixels)
    names = _Names(f"{comp.name}_means", f"{comp.name}_squares")
    each = _each(comp, value, replace(reduce, axes=pixels), rows, names)
    merged = _merged(comp, value, channel, rows, names)
    shape = tuple(a.extent for a in rows)
    strides = tuple(product(shape[d + 1 :]) for d in range(len(shape)))
    made = (Buffer(n, shape, dtypes.f32, strides, device) for n in (names.mean, names.squares))
    return each, merged, tuple(made)


def _each(comp: Comp, value: Value, reduce: Reduce, rows: tuple[Axis, ...], names: _Names) -> Comp:
    """The instructions before the reduction, and it over the pixels of one channel."""
    body = (*comp.body[:value], reduce)
    picks = (Pick(value, 0, dtypes.f32), Pick(value, 1, dtypes.f32))
    place = tuple(axis(a.name) for a in rows)
    stores = (Store(names.mean, place, value + 1), Store(names.squares, place, value + 2))
    made = Comp(f"{comp.name}_each", comp.axes, (*body, *picks), stores, comp.origins)
    return tidy(made, eager=True)


def _merged(comp: Comp, value: Value, channel: str, rows: tuple[Axis, ...], names: _Names) -> Comp:
    """`comp` with mean = sum(mean_c) / C and squares = sum(squares_c + P * (mean_c - mean)^2)."""
    to, at = BodyBuilder(), []
    extents = {a.name: a.extent for a in comp.axes}
    reduced = comp.body[value].axes
    place = tuple(axis(a.name) for a in rows)
    one = to.load(names.mean, place, dtypes.f32)
    channels = _count(to, (channel,), extents)
    pixels = _count(to, tuple(a for a in reduced if a != channel), extents)
    mean = to.op("div", to.reduce("sum", (one,), (channel,)), channels)
    apart = to.op("sub", one, mean)
    between = to.op("mul", pixels, to.op("mul", apart, apart))
    inside = to.load(names.squares, place, dtypes.f32)
    squares = to.reduce("sum", (to.op("add", inside, between),), (channel,))
    picks = {
        v: (mean, squares)[i.item]
        for v, i in enumerate(comp.body)
        if isinstance(i, Pick) and i.arg == value
    }
    used = needed(comp.body, (v for s in comp.stores for v in store_operands(s)), picks)
    for v, instr in enumerate(comp.body):
        copied = v in used and v not in picks
        at.append(copy_instr(to, instr, at, Place({}, extents)) if copied else picks.get(v))
    stores = tuple(copy_store(to, s, at, Place({}, extents)) for s in comp.stores)
    return Comp(comp.name, rows, to.body, stores, comp.origins)


def _count(to: BodyBuilder, names: tuple[str, ...], extents: Mapping[str, Size]) -> Value:
    """The product of extents, in float32."""
    total = product(extents[n] for n in names)
    if isinstance(total, int):
        return to.const(float(total), dtypes.f32)
    return to.cast(to.index(constant(total)), dtypes.f32)
