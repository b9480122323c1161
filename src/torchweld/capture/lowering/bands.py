"""Sums along dimensions of an image over windows whose place and length depend on the position:
adaptive pooling, its gradient, and gradients of images that were resized by any factor.

A window is read by index: from a first place that is computed, as many elements as the longest
window has. What is not in the window is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr
from torchweld.capture.lowering.nest import Nest, Spec
from torchweld.capture.lowering.ranges import all_of
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir.views import Tensor, contiguous_strides

_MOST_APART = 9  # elements of a window that are read one by one, in the kernel of what is around
_LARGEST = 1 << 30  # places are computed in 32 bits


@dataclass(frozen=True, slots=True)
class Band:
    """Along one dimension, for the position i: the sum of `term(value, i, place)` over the `count`
    places from `first(i)` on that are inside `size` elements and `has(i, place)`; then
    `total(sum, i)`. Positions and places are i32."""

    size: int
    count: int
    first: Callable[[Expr], Expr]
    has: Callable[[Expr, Expr], Expr]
    term: Callable[[Expr, Expr, Expr], Expr] = lambda value, i, place: value
    total: Callable[[Expr, Expr], Expr] = lambda total, i: total


@dataclass(frozen=True, slots=True)
class Window:
    """One element of a window: where it is read, whether it is there."""

    place: Expr
    inside: Expr


def known(*sizes) -> bool:
    """Whether places can be computed: sizes are numbers, and their products have 32 bits."""
    return all(isinstance(n, int) and n > 0 for n in sizes) and math.prod(sizes) < _LARGEST


def element(nest: Nest, d: int, band: Band, number: Expr | int) -> Window:
    """Of the window at the nest's position along dimension d, the element with this number."""
    at = _at(nest, d)
    place = band.first(at) + number
    return Window(place, (place < band.size) & band.has(at, place))


def summed(call: Call, x: Tensor, bands: Mapping[int, Band]) -> Tensor:
    """x [...] -> the call's result: few elements of a window in one kernel, else one dimension
    after the other, the last first; sums between two kernels are not rounded."""
    bands = dict(sorted(bands.items()))
    if math.prod(b.count for b in bands.values()) <= _MOST_APART:
        return call.finish(*_one_by_one(call, x, call.out.shape, bands))
    while len(bands) > 1:
        d, band = bands.popitem()
        shape = (*x.shape[:d], call.out.shape[d], *x.shape[d + 1 :])
        spec = Spec(shape, contiguous_strides(shape), dtypes.compute(x.dtype), x.device)
        nest, value = _along(call, x, shape, d, band)
        x = nest.store(value, spec, range(len(shape)))
        nest.close()
    ((d, band),) = bands.items()
    nest, value = _along(call, x, call.out.shape, d, band)
    return call.finish(nest, value, range(len(call.out.shape)))


def _along(call: Call, x: Tensor, shape: Sequence, d: int, band: Band) -> tuple[Nest, Expr]:
    """The nest over `shape`, and the sum of each window along dimension d."""
    if band.count <= _MOST_APART:
        return _one_by_one(call, x, shape, {d: band})
    rank = len(shape)
    nest = call.nest((*shape, band.count), extra=[(x, _but(rank, [d]))])
    window = element(nest, d, band, _at(nest, rank))
    total = nest.reduce("sum", _read(nest, x, {d: band}, [window]), [rank])
    return nest, band.total(total, _at(nest, d))


def _one_by_one(
    call: Call, x: Tensor, shape: Sequence, bands: Mapping[int, Band]
) -> tuple[Nest, Expr]:
    nest = call.nest(shape, extra=[(x, _but(len(shape), bands))])
    windows = [[element(nest, d, b, k) for k in range(b.count)] for d, b in bands.items()]
    total = reduce(lambda a, b: a + b, (_read(nest, x, bands, at) for at in product(*windows)))
    for d, band in bands.items():
        total = band.total(total, _at(nest, d))
    return nest, total


def _read(nest: Nest, x: Tensor, bands: Mapping[int, Band], at: Sequence[Window]) -> Expr:
    """One element of x, zero where it is in no window."""
    places: list = list(range(x.rank))
    for d, window in zip(bands, at):
        places[d] = window.place.to(dtypes.i64)
    value = nest.read(x, places, guard=all_of([w.inside for w in at])).widen()
    for (d, band), window in zip(bands.items(), at):
        value = band.term(value, _at(nest, d), window.place)
    return value


def _at(nest: Nest, d: int) -> Expr:
    return nest.position(d).to(dtypes.i32)


def _but(rank: int, dims) -> list[int | None]:
    return [None if d in dims else d for d in range(rank)]


def needs_gpu(call: Call) -> None:
    """Raises NotLowered on a CPU, where ATen's kernels read windows row by row."""
    if not call.out.device.startswith("cuda") or not call.out.dtype.is_float:
        raise NotLowered("windows of several sizes")
