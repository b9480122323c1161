"""Indirect reads: embedding, gather, index_select, index; and what indirect writes share with them.

Indices are wrapped (negative ones count from the end) and then clamped into the buffer, so that no
access leaves it. On a CPU, an index that is out of range raises IndexError: see `check_range`. On a
GPU, where reading a flag would stop the stream, it reads or writes the nearest element.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.capture import views
from torchweld.capture.lowering.call import Call, normal
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest, Spec, aligned
from torchweld.capture.lowering.registry import lowers
from torchweld.capture.views import Fill, Iota, Tensor
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.nodes import Extern
from torchweld.ir.size import Size


def in_range(index: Expr, size: Size, wrap: bool = True) -> Expr:
    """An i64 index inside [0, size)."""
    index = index.to(dtypes.i64)
    if wrap:
        index = where(index < 0, index + size, index)
    return index.maximum(0).minimum(size - 1)


def check_range(
    call: Call, index: Tensor, extent: Size, lowest: Size = 0, ignored: int | None = None
) -> None:
    """On a CPU, appends what raises IndexError unless every index is in [lowest, extent) or is
    `ignored`. Once for the same indices and bounds; not for indices that cannot be outside."""
    index, graph = _each_once(index), call.graph
    key = (index, lowest, extent, ignored)
    on_cpu = call.out.device == "cpu"  # an index there may point into a GPU's tensor
    if not on_cpu or key in graph.checked or _is_within(index, lowest, extent):
        return
    graph.checked.add(key)
    nest = Nest(graph, "check_index", index.shape, [aligned(index, index.rank)])
    value = nest.read(index).to(dtypes.i64)
    outside = (value < lowest) | (value >= extent)
    if ignored is not None:
        outside = outside & value.ne(ignored)
    flag = nest.reduce("any", outside, range(index.rank))
    result = nest.store(flag, Spec((), (), dtypes.b1, "cpu"), ())
    nest.close(op=CHECK_INDEX)
    args = (graph.view_of(result), lowest, extent)
    name = graph.node_name("check_index")
    graph.emit(Extern(name, CHECK_INDEX, args, (), (), (), (graph.origin,)))


def _each_once(index: Tensor) -> Tensor:
    """The same elements without those that a broadcast repeats, and without empty dimensions."""
    dims = (tuple(a for a in dim if a.steps or a.extent == 0) for dim in index.dims)
    return replace(index, dims=tuple(dim for dim in dims if dim), copied=False)


def _is_within(index: Tensor, lowest: Size, extent: Size) -> bool:
    """Whether the elements are known to be in [lowest, extent): constants and progressions are."""
    ends = _ends(index)
    if ends is None:
        return False
    room = (ends[0] - lowest, extent - 1 - ends[1])
    return all(isinstance(r, int) and r >= 0 for r in room)


def _ends(index: Tensor) -> tuple[Size, Size] | None:
    """(smallest, largest) element of what takes no memory; None where that is not known."""
    if isinstance(index.source, Fill):
        return int(index.source.value), int(index.source.value)
    if not isinstance(index.source, Iota):
        return None
    low = high = index.base[0]
    for atom in (a for dim in index.dims for a in dim):
        step = sum((c for _, c in atom.steps), 0)
        if not isinstance(step, int):
            return None
        reach = (atom.extent - 1) * step
        low, high = (low, high + reach) if step > 0 else (low + reach, high)
    return low, high


@lowers("aten.embedding.default")
def embedding(call: Call, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    shape = call.out.shape
    last = len(shape) - 1
    check_range(call, indices, weight.shape[0])
    nest = call.nest(shape, extra=[(weight, (None, last)), (indices, tuple(range(last)))])
    row = in_range(nest.read(indices, range(last)), weight.shape[0], wrap=False)
    return call.finish(nest, nest.read(weight, (row, last)))


@lowers("aten.gather.default")
def gather(call: Call, x, d, index, *, sparse_grad=False):
    if x.rank == 0:
        raise NotLowered("a gather from a scalar")
    d = normal(d, x.rank)
    check_range(call, index, x.shape[d])
    nest = call.nest(index.shape, index, extra=[(x, [None] * x.rank)])
    at = in_range(nest.read(index), x.shape[d], wrap=False)
    return call.finish(nest, nest.read(x, [at if k == d else nest.at(k) for k in range(x.rank)]))


@lowers("aten.index_select.default")
def index_select(call: Call, x, d, index):
    if x.rank == 0:
        raise NotLowered("a selection from a scalar")
    d = normal(d, x.rank)
    check_range(call, index, x.shape[d])
    places = [None if k == d else k for k in range(x.rank)]
    index = index if index.rank else views.unsqueeze(index, 0)
    nest = call.nest(call.out.shape, extra=[(x, places), (index, (d,))])
    at = in_range(nest.read(index, (d,)), x.shape[d], wrap=False)
    return call.finish(nest, nest.read(x, [at if k == d else k for k in range(x.rank)]))


@lowers("aten.index.Tensor")
def index(call: Call, x, indices):
    """x[i, :, j]: index tensors broadcast together; their dimensions stand where the first was, or
    first if they are apart."""
    layout = IndexLayout(x, indices)
    layout.check(call)
    return _read(call, layout)


@lowers("aten._unsafe_index.Tensor")
def unsafe_index(call: Call, x, indices):
    """`index` with indices that a decomposition has made, in range."""
    return _read(call, IndexLayout(x, indices))


def _read(call: Call, layout: IndexLayout) -> Tensor:
    x = layout.x
    nest = call.nest(call.out.shape, extra=[(x, layout.free_places()), *layout.index_operands()])
    return call.finish(nest, nest.read(x, layout.places(nest)))


class IndexLayout:
    """Where the dimensions of x[indices] come from."""

    def __init__(self, x: Tensor, indices) -> None:
        self.x, self.indices = x, [*indices, *[None] * (x.rank - len(indices))]
        if any(t is not None and not t.dtype.is_integral for t in self.indices):
            raise NotLowered("indexing by a mask")
        self.indexed = [d for d, t in enumerate(self.indices) if t is not None]
        self.rank = max(self.indices[d].rank for d in self.indexed)
        together = self.indexed == list(range(self.indexed[0], self.indexed[-1] + 1))
        self.first = self.indexed[0] if together else 0

    def check(self, call: Call) -> None:
        for d in self.indexed:
            check_range(call, self.indices[d], self.x.shape[d], -self.x.shape[d])

    def shape(self) -> tuple[Size, ...]:
        """Of x[indices]."""
        result: list[Size] = [1] * (self.rank + self.indices.count(None))
        for d, t in enumerate(self.indices):
            if t is None:
                result[self._kept(d)] = self.x.shape[d]
                continue
            for place, size in zip(self.index_places(d), t.shape):
                result[place] = size if size != 1 else result[place]
        return tuple(result)

    def _kept(self, d: int) -> int:
        """The result's dimension for x's dimension d, which no tensor indexes."""
        before = sum(self.indices[k] is None for k in range(d))
        return before if before < self.first else before + self.rank

    def free_places(self):
        return [None if t is not None else self._kept(d) for d, t in enumerate(self.indices)]

    def index_places(self, d: int):
        own = self.indices[d].rank
        return [self.first + self.rank - own + k for k in range(own)]

    def index_operands(self):
        return [(self.indices[d], self.index_places(d)) for d in self.indexed]

    def places(self, nest: Nest):
        return [
            self._kept(d)
            if t is None
            else in_range(nest.read(t, self.index_places(d)), self.x.shape[d])
            for d, t in enumerate(self.indices)
        ]
