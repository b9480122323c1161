"""Gradients of images that are resized, on a GPU: of each position, the sum over the results that
it had a share in, in order. ATen's calls add with atomics, in another order each time, and 16-bit
floats in 16 bits.

By a whole factor, results of one position that lie equally far from it are weighted alike, but for
a few at the edges: weights are numbers. Else they are computed (resampled.py); of the nearest
position, ATen's call stays, which gathers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce

from torchweld.capture.lowering.bands import needs_gpu, summed
from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest, Spec
from torchweld.capture.lowering.pool_gradients import MOST_WINDOWS
from torchweld.capture.lowering.ranges import all_of
from torchweld.capture.lowering.registry import lowers
from torchweld.capture.lowering.resampled import CUBIC, LINEAR, Kernel, band, cubic_weights
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir.views import Tensor, contiguous_strides

_MOST_SHARES = 16  # of a position, along one dimension
_MOST_EDGES = 4  # positions that are weighted by numbers of their own
_ALIKE = 1e-9


@dataclass(frozen=True, slots=True)
class _Share:
    """What the results number factor * i + `shift` are weighted with for position i: `usual`, at
    `edges` other numbers. `below`, `beyond`: whether some of them are not there."""

    shift: int
    usual: float
    edges: Mapping[int, float]
    below: bool
    beyond: bool


@dataclass(frozen=True, slots=True)
class _Side:
    """One dimension of an image: how much larger it was made, and the shares of a position."""

    factor: int
    shares: tuple[_Share, ...]


def _floor(x: float) -> int:
    """What is whole but for rounding is whole."""
    return math.floor(x + _ALIKE)


def _nearest(at: int, step: float, size: int) -> Iterator[tuple[int, float]]:
    yield min(_floor(at * step), size - 1), 1.0


def _nearest_exact(at: int, step: float, size: int) -> Iterator[tuple[int, float]]:
    yield min(_floor((at + 0.5) * step), size - 1), 1.0


def _linear(at: int, step: float, size: int) -> Iterator[tuple[int, float]]:
    source = max((at + 0.5) * step - 0.5, 0.0)
    first = min(_floor(source), size - 1)
    yield first, 1.0 - (source - first)
    yield min(first + 1, size - 1), source - first


def _cubic(at: int, step: float, size: int) -> Iterator[tuple[int, float]]:
    source = (at + 0.5) * step - 0.5
    first = _floor(source)
    for tap, weight in enumerate(cubic_weights(source - first), -1):
        yield min(max(first + tap, 0), size - 1), weight


def _side(taps, size: int, made: int, scale: float | None) -> _Side:
    """`taps` gives (position, weight) of what a result is made from."""
    if not isinstance(size, int) or not isinstance(made, int) or not size or made % size:
        raise NotLowered("an image that is not made larger by a whole factor")
    factor, step = made // size, 1.0 / scale if scale else size / made
    weights: dict[int, dict[int, float]] = {}
    for at in range(made):
        for position, weight in taps(at, step, size):
            of = weights.setdefault(at - factor * position, {})
            of[position] = of.get(position, 0.0) + weight
    used = sorted(s for s, of in weights.items() if any(abs(w) > _ALIKE for w in of.values()))
    if len(used) > _MOST_SHARES:
        raise NotLowered("positions that have a share in many results")
    return _Side(factor, tuple(_share(s, weights[s], size, factor, made) for s in used))


def _share(shift: int, weights: Mapping[int, float], size: int, factor: int, made: int) -> _Share:
    there = [i for i in range(size) if 0 <= factor * i + shift < made]
    usual = weights.get(there[len(there) // 2], 0.0)
    edges = {i: w for i in there if abs((w := weights.get(i, 0.0)) - usual) > _ALIKE}
    if len(edges) > _MOST_EDGES:
        raise NotLowered("an image whose results are weighted in many ways")
    return _Share(shift, usual, edges, there[0] > 0, there[-1] < size - 1)


def _gathered(call: Call, gradient: Tensor, size, taps, scales) -> Tensor:
    """In one kernel where a position has few shares; else one dimension after the other, the last
    first, in float32."""
    needs_gpu(call)
    scales = (*scales, None, None, None)  # the last are left out where they are None
    found = (_side(taps, *of) for of in zip(size[2:], gradient.shape[2:], scales))
    sides = dict(enumerate(found, 2))
    while len(sides) > 1 and math.prod(len(s.shares) for s in sides.values()) > MOST_WINDOWS:
        d, side = sides.popitem()
        shape = (*gradient.shape[:d], size[d], *gradient.shape[d + 1 :])
        kind = dtypes.compute(gradient.dtype)
        spec = Spec(shape, contiguous_strides(shape), kind, gradient.device)
        nest, value = _summed(call, gradient, shape, {d: side})
        gradient = nest.store(value, spec)
        nest.close()
    return call.finish(*_summed(call, gradient, call.out.shape, sides))


def _summed(call: Call, x: Tensor, shape, sides: Mapping[int, _Side]) -> tuple[Nest, Expr]:
    """The nest over `shape`, and the weighted sum there of x along the dimensions of `sides`."""
    nest = call.nest(shape, extra=[(x, tuple(None if d in sides else d for d in range(x.rank)))])
    return nest, _total(nest, x, list(sides.items()), list(range(x.rank)), [])


def _total(
    nest: Nest, x: Tensor, sides: Sequence[tuple[int, _Side]], places: list, inside: list[Expr]
) -> Expr:
    """In the order of memory. `places`: of x, where `sides` do not say; `inside`: what must hold
    for there to be something."""
    if not sides:
        return nest.read(x, places, guard=all_of(inside)).widen()
    (d, side), *deeper = sides
    terms = []
    for share in side.shares:
        place, guards = nest.at(d) * side.factor + share.shift, [*inside]
        if share.below:
            guards.append(nest.index_value(place) >= 0)
        if share.beyond:
            guards.append(nest.index_value(place) < x.shape[d])
        there = [*places[:d], place, *places[d + 1 :]]
        terms.append(_weighted(nest, d, share, _total(nest, x, deeper, there, guards)))
    return reduce(lambda a, b: a + b, terms)


def _weighted(nest: Nest, d: int, share: _Share, value: Expr) -> Expr:
    weight = value.lift(share.usual)
    for position, other in share.edges.items():
        weight = where(nest.position(d).eq(position), value.lift(other), weight)
    return value if share.usual == 1.0 and not share.edges else value * weight


def _dims(name: str, ranks: Sequence[int]) -> list[str]:
    return [f"aten.{name.format(rank)}_backward.default" for rank in ranks]


@lowers(*_dims("upsample_nearest{}d", (1, 2, 3)))
def nearest(call: Call, gradient, _, size, *scales):
    return _gathered(call, gradient, size, _nearest, scales)


@lowers(*_dims("_upsample_nearest_exact{}d", (1, 2, 3)))
def nearest_exact(call: Call, gradient, _, size, *scales):
    return _gathered(call, gradient, size, _nearest_exact, scales)


@lowers(*_dims("upsample_linear{}d", (1,)), *_dims("upsample_bilinear{}d", (2,)),
        *_dims("upsample_trilinear{}d", (3,)))  # fmt: skip
def linear(call: Call, gradient, _, size, aligned, *scales):
    return _weighted_by_distance(call, gradient, size, aligned, scales, _linear, LINEAR)


@lowers(*_dims("upsample_bicubic{}d", (2,)))
def cubic(call: Call, gradient, _, size, aligned, *scales):
    return _weighted_by_distance(call, gradient, size, aligned, scales, _cubic, CUBIC)


def _weighted_by_distance(
    call: Call, gradient: Tensor, size, aligned: bool, scales, taps, kernel: Kernel
) -> Tensor:
    if not aligned:
        with suppress(NotLowered):
            return _gathered(call, gradient, size, taps, scales)
    needs_gpu(call)
    scales, dtype = (*scales, None, None, None), dtypes.compute(gradient.dtype)
    sides = enumerate(zip(size[2:], gradient.shape[2:], scales), 2)
    bands = {d: band(kernel, n, made, aligned, scale, dtype) for d, (n, made, scale) in sides}
    return summed(call, gradient, bands)
