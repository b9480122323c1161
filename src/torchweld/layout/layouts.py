"""Temporaries in the order in which rows are reduced.

Eager's pointwise results keep the strides of their operands: after a permuted convolution, as in
speech encoders, the whole residual stream has the channels outermost, and each LayerNorm reads its
rows with a stride. Whisper's on an H100, [16, 1500, 768] in bfloat16: 137 us each, 45 us with
contiguous rows.

The layout of a temporary is free, so one that is reduced along rows becomes contiguous; the kernel
that reads the convolution's result transposes, once. What the caller gets keeps its layout, and so
do images with channels last. On a CPU, those of a few channels (masks of classes, after `one_hot`)
are taken apart for max pooling, whose neighbours else are as far from each other as there are
channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torchweld.ir.affine import Affine
from torchweld.ir.nodes import (
    Arg,
    Buffer,
    Comp,
    Extern,
    Graph,
    IndexMap,
    Load,
    View,
    reduced_axes,
    views,
)
from torchweld.ir.size import Size
from torchweld.ir.views import contiguous_strides
from torchweld.layout.channels import is_channels_last
from torchweld.rewrite.flow import fixed_buffers, mutated_buffers
from torchweld.templates.pooling.schedule import has_large_windows

_FEW = 16  # channels: a vector


def contiguous_rows(graph: Graph, loose_outputs: Iterable[int] = frozenset()) -> Graph:
    """`graph` with permuted temporaries contiguous where that is the order of their reductions.
    `loose_outputs`: positions of outputs that may have any strides, if they are numbers."""
    orders = _orders(graph, frozenset(loose_outputs))
    wanted, kept = _preferences(graph, orders)
    return laid_out(graph, {n: orders[n].relaid for n in wanted - kept})


@dataclass(frozen=True, slots=True)
class Relaid:
    """A dense buffer whose dimensions get another order in memory."""

    shape: tuple[Size, ...]
    before: tuple[Size, ...]  # strides
    after: tuple[Size, ...]

    def move(self, view: View) -> View | None:
        """The same elements in the other order; None if a dimension of the view is not (part of)
        one of the buffer."""
        strides = [self._moved(n, s) for n, s in zip(view.shape, view.strides)]
        steps = [s for n, s in zip(view.shape, strides) if n != 1 and s != 0]
        if view.offset != 0 or None in strides or len(set(steps)) < len(steps):
            return None
        return replace(view, strides=tuple(strides))

    def _moved(self, size: Size, stride: Size) -> Size | None:
        if size == 1 or stride == 0:
            return stride
        for d, n in enumerate(self.shape):
            if n != 1 and self.before[d] == stride and _fits(size, n):
                return self.after[d]
        return None


@dataclass(frozen=True, slots=True)
class _Order:
    """A buffer that can become contiguous. `unit`: the dimension of unit stride now; `last`: the
    one of a contiguous buffer."""

    relaid: Relaid
    unit: int
    last: int

    @classmethod
    def of(cls, buffer: Buffer) -> _Order | None:
        """None if the buffer is no dense permutation, or its rows are contiguous."""
        dims = innermost_first(buffer)
        long = [d for d, n in enumerate(buffer.shape) if n != 1]
        if not dims or dims[0] == long[-1]:
            return None
        after = contiguous_strides(buffer.shape)
        return cls(Relaid(buffer.shape, buffer.strides, after), dims[0], long[-1])


def _fits(size: Size, extent: Size) -> bool:
    known = isinstance(size, int) and isinstance(extent, int)
    return size <= extent if known else size == extent


def innermost_first(buffer: Buffer) -> list[int]:
    """The dimensions by stride; empty if the buffer has gaps or overlaps."""
    left = [d for d, n in enumerate(buffer.shape) if n != 1]
    found, expected = [], 1
    while left:
        fitting = [d for d in left if buffer.strides[d] == expected]
        if len(fitting) != 1:
            return []
        found.append(fitting[0])
        left.remove(fitting[0])
        expected = expected * buffer.shape[fitting[0]]
    return found


# -- which buffers --


def free_buffers(graph: Graph, loose: frozenset[int]) -> set[str]:
    """Those that kernels of ours alone write, and that nobody sees as they are, or copies as
    memory."""
    comps = [n for n in graph.nodes if isinstance(n, Comp)]
    made = {w for n in comps for w in n.writes}
    called = {w for n in graph.nodes if isinstance(n, Extern) for w in n.writes}
    started = [s for n in comps for s in n.stores if s.init is not None]
    held = fixed_buffers(graph, loose).union(*((s.buffer, str(s.init)) for s in started))
    return made - called - held - mutated_buffers(graph)


def movable(graph: Graph, wanted: Mapping[str, Relaid]) -> dict[str, Relaid]:
    """The buffers, by name, that every window on them can follow."""
    found = dict(wanted)
    for view in _windows(graph):
        if view.buffer in found and found[view.buffer].move(view) is None:
            del found[view.buffer]
    return found


def _orders(graph: Graph, loose: frozenset[int]) -> dict[str, _Order]:
    """The buffers that can become contiguous."""
    found, pooled = {}, _pooled(graph)
    for name in sorted(free_buffers(graph, loose)):
        buffer = graph.buffers[name]
        order = _Order.of(buffer)
        image = View(name, buffer.shape, buffer.strides)
        if order is not None and (name in pooled or not is_channels_last(image)):
            found[name] = order
    return {n: found[n] for n in movable(graph, {n: o.relaid for n, o in found.items()})}


def _pooled(graph: Graph) -> frozenset[str]:
    """Images of a few channels on a CPU that are pooled, or made so."""
    comps = (n for n in graph.nodes if isinstance(n, Comp) and has_large_windows(n))
    images = (graph.buffers[b] for n in comps for b in (*n.reads, *n.writes))
    return frozenset(b.name for b in images if b.device == "cpu" and _has_few_channels(b))


def _has_few_channels(buffer: Buffer) -> bool:
    channels = buffer.shape[1] if len(buffer.shape) in (4, 5) else None
    few = isinstance(channels, int) and channels < _FEW
    return few and is_channels_last(View(buffer.name, buffer.shape, buffer.strides))


def _windows(graph: Graph) -> list[View]:
    calls = [n for n in graph.nodes if isinstance(n, Extern)]
    return views((*graph.outputs, *(n.args for n in calls), *(n.kwargs for n in calls)))


def _preferences(graph: Graph, orders: dict[str, _Order]) -> tuple[set[str], set[str]]:
    """The buffers that some reduction would rather have contiguous, and rather as they are."""
    pooled = _pooled(graph) & orders.keys()
    wanted, kept = set(pooled), set[str]()
    for comp in (n for n in graph.nodes if isinstance(n, Comp)):
        reduced = reduced_axes(comp)
        accesses = [i for i in comp.body if isinstance(i, Load)] + list(comp.stores)
        for access in (a for a in accesses if a.buffer in orders):
            order = orders[access.buffer]
            now = _runs_along(access.index, order.unit, reduced)
            then = _runs_along(access.index, order.last, reduced)
            if now != then:
                (wanted if then else kept).add(access.buffer)
    return wanted, kept - pooled


def _runs_along(index: IndexMap, dim: int, axes: set[str]) -> bool:
    """Whether a step along one of the axes is a step along the dimension."""
    place = index[dim]
    return isinstance(place, Affine) and any(place.coefficient(a) == 1 for a in axes)


# -- the graph, changed --


def laid_out(graph: Graph, chosen: Mapping[str, Relaid]) -> Graph:
    """`graph` with these buffers in their other order, for everyone who names them."""
    if not chosen:
        return graph

    def moved(arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(moved(a) for a in arg)
        known = isinstance(arg, View) and arg.buffer in chosen
        return chosen[arg.buffer].move(arg) if known else arg

    after = {n: replace(graph.buffers[n], strides=to.after) for n, to in chosen.items()}
    nodes = tuple(
        replace(n, args=moved(n.args), kwargs=moved(n.kwargs)) if isinstance(n, Extern) else n
        for n in graph.nodes
    )
    return replace(
        graph, buffers={**graph.buffers, **after}, nodes=nodes, outputs=moved(graph.outputs)
    )
