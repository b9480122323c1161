"""Indirect reads: embedding, gather, index_select, index; and what indirect writes share with
them."""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.capture.lowering.call import Call, normal
from torchweld.capture.lowering.expr import Expr
from torchweld.capture.lowering.nest import COMPUTED, Nest, Place
from torchweld.capture.lowering.ranges import (
    check_range,
    in_range,
    is_inside,
    read_where,
    run_of,
)
from torchweld.capture.lowering.registry import lowers
from torchweld.core.errors import NotLowered
from torchweld.ir import views
from torchweld.ir.size import Size
from torchweld.ir.views import Tensor


@lowers("aten.embedding.default")
def embedding(call: Call, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    shape = call.out.shape
    last = len(shape) - 1
    guarded = check_range(call, indices, weight.shape[0])
    nest = call.nest(shape, extra=[(weight, (None, last)), (indices, tuple(range(last)))])
    row, guards = _place(nest.read(indices, range(last)), weight.shape[0], guarded, weight)
    return call.finish(nest, read_where(nest, weight, (row, last), guards))


@lowers("aten.gather.default")
def gather(call: Call, x, d, index, *, sparse_grad=False):
    if x.rank == 0:
        raise NotLowered("a gather from a scalar")
    d = normal(d, x.rank)
    guarded = check_range(call, index, x.shape[d])
    apart = [COMPUTED if k == d else None for k in range(x.rank)]
    nest = call.nest(index.shape, index, extra=[(x, apart)])
    at, guards = _place(nest.read(index), x.shape[d], guarded, x)
    places = [at if k == d else nest.at(k) for k in range(x.rank)]
    return call.finish(nest, read_where(nest, x, places, guards))


@lowers("aten.index_select.default")
def index_select(call: Call, x, d, index):
    if x.rank == 0:
        raise NotLowered("a selection from a scalar")
    d = normal(d, x.rank)
    guarded = check_range(call, index, x.shape[d])
    places = [COMPUTED if k == d else k for k in range(x.rank)]
    index = index if index.rank else views.unsqueeze(index, 0)
    nest = call.nest(call.out.shape, extra=[(x, places), (index, (d,))])
    at, guards = _place(nest.read(index, (d,)), x.shape[d], guarded, x)
    places = [at if k == d else k for k in range(x.rank)]
    return call.finish(nest, read_where(nest, x, places, guards))


def _place(given: Expr, extent: Size, guarded: bool, x: Tensor) -> tuple[Expr, list[Expr]]:
    """(an index that is never negative, inside the buffer; what must hold for the access to x)."""
    guards = [is_inside(given, 0, extent)] if guarded else []
    return in_range(given, extent, wrap=False, guarded=guarded and x.dtype.is_float), guards


@lowers("aten.index.Tensor")
def index(call: Call, x, indices):
    """x[i, :, j]: index tensors broadcast together; their dimensions stand where the first was, or
    first if they are apart."""
    part = _known_part(x, indices)
    if part is not None and x.source not in call.graph.mutated:
        return call.fresh(part)
    layout = IndexLayout(x, indices)
    return _read(call, layout, layout.check(call))


def _known_part(x: Tensor, indices) -> Tensor | None:
    """x[:, [2]] and x[:, [4, 2, 0]], whose integers are known, as a slice."""
    given = [(d, t) for d, t in enumerate(indices) if t is not None]
    if len(given) != 1 or given[0][1].rank != 1 or not given[0][1].dtype.is_integral:
        return None
    (d, index), size = given[0], x.shape[given[0][0]]
    found = run_of(index)
    if found is None or not isinstance(size, int):
        return None
    start, count, step = found
    start = start + size if start < 0 else start
    last = start + (count - 1) * step
    if not (0 <= start < size and 0 <= last < size):
        return None
    return views.slice_(x, d, start, count, step)


@lowers("aten._unsafe_index.Tensor")
def unsafe_index(call: Call, x, indices):
    """`index` with indices that a decomposition has made, in range."""
    return _read(call, IndexLayout(x, indices))


def _read(call: Call, layout: IndexLayout, guarded: Sequence[int] = ()) -> Tensor:
    x = layout.x
    apart = [COMPUTED if place is None else place for place in layout.free_places()]
    nest = call.nest(call.out.shape, extra=[(x, apart), *layout.index_operands()])
    guards = layout.guards(nest, guarded)
    places = layout.places(nest, guarded if x.dtype.is_float else ())
    return call.finish(nest, read_where(nest, x, places, guards))


class IndexLayout:
    """Where the dimensions of x[indices] come from."""

    def __init__(self, x: Tensor, indices) -> None:
        self.x, self.indices = x, [*indices, *[None] * (x.rank - len(indices))]
        if any(t is not None and not t.dtype.is_integral for t in self.indices):
            raise NotLowered("indexing by a mask")
        self.indexed = [d for d, t in enumerate(self.indices) if t is not None]
        self.rank = max(self.indices[d].rank for d in self.indexed)
        self.together = self.indexed == list(range(self.indexed[0], self.indexed[-1] + 1))
        self.first = self.indexed[0] if self.together else 0

    @property
    def is_single(self) -> bool:
        """Whether each index is one number, so that no element is met twice."""
        return all(size == 1 for d in self.indexed for size in self.indices[d].shape)

    def check(self, call: Call) -> list[int]:
        """The dimensions of x along which accesses must be guarded."""
        sizes = self.x.shape
        return [
            d for d in self.indexed if check_range(call, self.indices[d], sizes[d], -sizes[d])
        ]

    def guards(self, nest: Nest, guarded: Sequence[int]) -> list[Expr]:
        """What must hold for an access by the indices of some dimensions."""
        given = [(nest.read(self.indices[d], self.index_places(d)), d) for d in guarded]
        return [is_inside(i, -self.x.shape[d], self.x.shape[d]) for i, d in given]

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

    def places(self, nest: Nest, guarded: Sequence[int] = ()) -> list[Place]:
        """`guarded`: dimensions along which who reads or writes asks for `guards` first."""
        found: list[Place] = []
        for d, t in enumerate(self.indices):
            if t is None:
                found.append(self._kept(d))
                continue
            given = nest.read(t, self.index_places(d))
            found.append(in_range(given, self.x.shape[d], guarded=d in guarded))
        return found
