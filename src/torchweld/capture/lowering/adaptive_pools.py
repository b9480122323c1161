"""Adaptive pooling with windows of several sizes, on a GPU: window i of `out` over `size` elements
goes from floor(i * size / out) to ceil((i + 1) * size / out). ATen's calls read each window by one
thread, or add gradients up by atomics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from itertools import pairwise, product

from torchweld.capture.lowering import windows
from torchweld.capture.lowering.bands import Band, element, known, needs_gpu, summed
from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.pool_gradients import MOST_WINDOWS
from torchweld.capture.lowering.ranges import all_of
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir.size import Size
from torchweld.ir.views import Tensor


def _start(i, size: int, out: int):
    return _quotient(i * size, out)


def _end(i, size: int, out: int):
    return _quotient(i * size + (size + out - 1), out)


def _quotient(a, b: int):
    """Of what is not negative."""
    return a.trunc_div(b) if isinstance(a, Expr) else a // b


def _longest(size: int, out: int) -> int:
    return max(_end(i, size, out) - _start(i, size, out) for i in range(out))


def _length(like: Expr, i: Expr, size: int, out: int) -> Expr:
    """Never zero: gradients are divided by it before it is known whether they are there."""
    return (_end(i, size, out) - _start(i, size, out)).maximum(1).to(like.dtype)


def _mean(size: int, out: int) -> Band:
    """A window's mean."""
    return Band(
        size, _longest(size, out), lambda i: _start(i, size, out),
        lambda i, place: place < _end(i, size, out),
        total=lambda total, i: total / _length(total, i, size, out),
    )  # fmt: skip


def _holding(size: int, out: int) -> Band:
    """The windows that hold a position, which lie as windows of `size` over `out` elements do."""
    return Band(
        out, _longest(out, size), lambda i: _start(i, out, size),
        lambda i, place: place < _end(i, out, size),
        lambda value, i, place: value / _length(value, place, size, out),
    )  # fmt: skip


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def average(call: Call, x, output_size):
    """As the pooling by windows of one size, at equal distances, that it often is; not of large
    ones that overlap."""
    rank = len(output_size)
    sides = list(zip(x.shape[-rank:], output_size))
    regular = [_regular(*side) for side in sides]
    if None not in regular:
        with suppress(NotLowered):
            return windows.average(call, x, rank, *zip(*regular))
    _check(call, sides)
    return summed(call, x, {x.rank - rank + k: _mean(*side) for k, side in enumerate(sides)})


@lowers("aten._adaptive_avg_pool2d_backward.default")
def average_backward2d(call: Call, gradient, x):
    return _average_backward(call, gradient, x, 2)


@lowers("aten._adaptive_avg_pool3d_backward.default")
def average_backward3d(call: Call, gradient, x):
    return _average_backward(call, gradient, x, 3)


def _average_backward(call: Call, gradient: Tensor, x: Tensor, rank: int) -> Tensor:
    """Of each position, the sum over the windows that hold it."""
    sides, first = list(zip(x.shape[-rank:], gradient.shape[-rank:])), x.rank - rank
    _check(call, sides)
    return summed(call, gradient, {first + k: _holding(*side) for k, side in enumerate(sides)})


def _check(call: Call, sides: Sequence[tuple[Size, Size]]) -> None:
    needs_gpu(call)
    if not all(known(*side) for side in sides):
        raise NotLowered("an adaptive pooling of sizes that are known at the call")


def _regular(size: Size, out: Size) -> tuple[int, int] | None:
    """(size, distance) of windows that are all alike."""
    if not isinstance(size, int) or not isinstance(out, int) or out == 0:
        return None
    starts = [_start(i, size, out) for i in range(out)]
    sizes = {_end(i, size, out) - start for i, start in enumerate(starts)}
    steps = {b - a for a, b in pairwise(starts)} or {1}
    return (*sizes, *steps) if len(sizes) == len(steps) == 1 else None


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def maximum(call: Call, x, output_size):
    """(the maximum of each window, its row-major position in the image); the first of those that
    are equal. Of several NaN, the first, where ATen names the last."""
    rank = len(output_size)
    first, sides = x.rank - rank, list(zip(x.shape[-rank:], output_size))
    _check(call, sides)
    bands = [_mean(*side) for side in sides]
    shape = (*call.out.shape, *(b.count for b in bands))
    nest = call.nest(shape, extra=[(x, windows.rows_alone(x, rank))])
    taken = [nest.position(x.rank + k).to(dtypes.i32) for k in range(rank)]
    found = [element(nest, first + k, b, taken[k]) for k, b in enumerate(bands)]
    places = [*range(first), *(w.place.to(dtypes.i64) for w in found)]
    value = nest.read(x, places, guard=all_of([w.inside for w in found]), fill=-math.inf).widen()
    reduced = range(x.rank, x.rank + rank)
    if 1 not in call.used:
        return call.finish_all(nest, [(nest.reduce("max", value, reduced), range(x.rank)), None])
    largest, tap = nest.arg("argmax", value, reduced)
    place = _place(nest, tap, first, bands)
    return call.finish_all(nest, [(largest, range(x.rank)), (place, range(x.rank))])


def _place(nest, tap: Expr, first: int, bands: Sequence[Band]) -> Expr:
    """The position in the image of a window's element number `tap`."""
    place, below = tap.lift(0), 1
    for k, band in reversed(list(enumerate(bands))):
        rest = tap.floor_div(band.count)
        start = band.first(nest.position(first + k).to(dtypes.i32)).to(dtypes.i64)
        place, tap = place + (start + (tap - rest * band.count)) * below, rest
        below *= band.size
    return place


@lowers("aten.adaptive_max_pool2d_backward.default")
def maximum_backward2d(call: Call, gradient, x, indices):
    return _maximum_backward(call, gradient, x, indices, 2)


@lowers("aten.adaptive_max_pool3d_backward.default")
def maximum_backward3d(call: Call, gradient, x, indices):
    return _maximum_backward(call, gradient, x, indices, 3)


def _maximum_backward(
    call: Call, gradient: Tensor, x: Tensor, indices: Tensor, rank: int
) -> Tensor:
    """Of each position, the sum over the windows that hold it and have it as their maximum."""
    sides, first = list(zip(x.shape[-rank:], gradient.shape[-rank:])), x.rank - rank
    _check(call, sides)
    bands = [_holding(*side) for side in sides]
    if math.prod(b.count for b in bands) > MOST_WINDOWS:
        raise NotLowered("positions that many windows hold")
    apart = windows.rows_alone(x, rank)
    nest = call.nest(x.shape, extra=[(gradient, apart), (indices, apart)])
    here = nest.index_value(nest.flat_index(range(first, x.rank)))
    found = [[element(nest, first + k, b, n) for n in range(b.count)] for k, b in enumerate(bands)]
    terms = [_chosen(nest, gradient, indices, at, here) for at in product(*found)]
    return call.finish(nest, reduce(lambda a, b: a + b, terms))


def _chosen(nest, gradient: Tensor, indices: Tensor, at, here: Expr) -> Expr:
    """A window's gradient where its maximum is here."""
    outer = gradient.rank - len(at)
    places = [*range(outer), *(w.place.to(dtypes.i64) for w in at)]
    guard = all_of([w.inside for w in at])
    chosen = nest.read(indices, places, guard=guard, fill=-1).eq(here)
    return where(chosen, nest.read(gradient, places, guard=guard).widen(), 0)
