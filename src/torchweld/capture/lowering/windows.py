"""Padding by reflection or replication, nearest-neighbour upsampling, pooling of small windows:
reads at computed positions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

from torchweld.capture.lowering import reductions
from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest, Spec
from torchweld.capture.lowering.pool_gradients import Counts, Side, divisor
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.size import Size, divide
from torchweld.ir.views import Tensor, contiguous_strides

LARGEST_MAXIMUM, _LARGEST_AVERAGE = 25, 16  # elements of a window, each a read of its own
# Maxima of 3 x 3 x 3: an H100 takes 159 us by ATen, for what memory moves in 31.
_LARGEST_ON_GPU = 27
_LONGEST_LINE = 25  # elements of a window along one axis that are written out
_LARGEST_BY_ROWS = 64  # of float32 on a CPU: a template reads rows, then columns


def _padded(call: Call, x: Tensor, pad, place: Callable[[Expr, Size], Expr]) -> Tensor:
    """`place(i, size)`: where in a dimension of `size` the position i (from -pad) reads."""
    before = {x.rank - 1 - k: pad[2 * k] for k in range(len(pad) // 2)}
    return _moved(
        call, x, {d: lambda at, size, n=n: place(at - n, size) for d, n in before.items()}
    )


def _moved(call: Call, x: Tensor, places: dict[int, Callable[[Expr, Size], Expr]]) -> Tensor:
    """x read along some dimensions at a function of the result's position."""
    aligned = [None if d in places else d for d in range(x.rank)]
    nest = call.nest(call.out.shape, extra=[(x, aligned)])
    at = [places[d](nest.position(d), x.shape[d]) if d in places else d for d in range(x.rank)]
    return call.finish(nest, nest.read(x, at))


@lowers(
    "aten.replication_pad1d.default",
    "aten.replication_pad2d.default",
    "aten.replication_pad3d.default",
)
def replication_pad(call: Call, x, pad):
    return _padded(call, x, pad, lambda i, size: i.maximum(0).minimum(size - 1))


@lowers(
    "aten.reflection_pad1d.default",
    "aten.reflection_pad2d.default",
    "aten.reflection_pad3d.default",
)
def reflection_pad(call: Call, x, pad):
    """|i| reflects at the first element, last - |last - |i|| at the last."""

    def place(i: Expr, size: Size) -> Expr:
        last = i.lift(size - 1)
        return last - (last - i.abs()).abs()

    return _padded(call, x, pad, place)


@lowers("aten.im2col.default")
def im2col(call: Call, x, window, dilation, padding, stride):
    """[n, c * h * w, places]: of each place, its window, zero outside the image."""
    size = x.shape[2:]
    if x.rank != 4 or not all(isinstance(n, int) for n in size):
        raise NotLowered("windows that ATen copies")
    reach = [d * (w - 1) + 1 for d, w in zip(dilation, window)]
    places = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(size, padding, reach, stride)]
    shape = (*x.shape[:2], *window, *places)
    nest = call.nest(shape, extra=[(x, (0, 1, None, None))])
    inside, here = nest.number(True, dtypes.b1), [0, 1]
    for d in range(2):
        index = nest.at(4 + d) * stride[d] + nest.at(2 + d) * dilation[d] + -padding[d]
        here.append(index)
        if padding[d]:
            at = nest.index_value(index)
            inside = inside & (at >= 0) & (at < size[d])
    made = Spec(shape, contiguous_strides(shape), x.dtype, x.device)
    result = nest.store(nest.read(x, here, guard=inside), made)
    nest.close()
    return call.reshaped(result, call.out.shape)


@lowers(
    "aten.upsample_nearest1d.default",
    "aten.upsample_nearest2d.default",
    "aten.upsample_nearest3d.default",
    "aten.upsample_nearest1d.vec",
    "aten.upsample_nearest2d.vec",
    "aten.upsample_nearest3d.vec",
)
def upsample_nearest(call: Call, x, *_):
    """floor(i * in / out), as integers where out is a multiple of in and as eager's float32
    otherwise."""
    shape = call.out.shape
    return _moved(call, x, {d: _nearest(shape[d], x.shape[d]) for d in range(2, x.rank)})


def _nearest(out: Size, size: Size) -> Callable[[Expr, Size], Expr]:
    factor = divide(out, size)
    if factor is not None:
        return lambda at, _: at.floor_div(factor)
    return lambda at, n: (
        (at.to(dtypes.f32) * (at.lift(n).to(dtypes.f32) / at.lift(out).to(dtypes.f32)))
        .to(dtypes.i64)
        .minimum(n - 1)
    )


@lowers("aten.max_pool2d_with_indices.default")
def max_pool2d(call: Call, x, *args, **options):
    return _max_pool(call, x, 2, *args, **options)


@lowers("aten.max_pool3d_with_indices.default")
def max_pool3d(call: Call, x, *args, **options):
    return _max_pool(call, x, 3, *args, **options)


def _max_pool(
    call: Call, x: Tensor, rank: int, kernel_size, stride=(), padding=0, dilation=1,
    ceil_mode=False, *, taps=False,
) -> list:  # fmt: skip
    """The maximum, NaN if there is one, of each window's elements that are inside x, and where it
    is, or with `taps` its number in the window, if somebody reads that. On a CPU, the call stays
    for the former."""
    kernel, padding, dilation = (_each(v, rank) for v in (kernel_size, padding, dilation))
    steps = _each(stride, rank) if stride else kernel
    spec, placed = call.specs[0], 1 in call.used
    by_rows = spec.device == "cpu" and spec.dtype == dtypes.f32 and not placed
    largest = LARGEST_MAXIMUM if spec.device == "cpu" else _LARGEST_ON_GPU
    largest = _LARGEST_BY_ROWS if by_rows else largest
    beyond = ceil_mode or any(padding)
    fill = -math.inf if beyond else None
    if not spec.dtype.is_float:
        raise NotLowered("a pooling of numbers that are no floats")
    if math.prod(kernel) > largest:
        if placed:
            raise NotLowered("a pooling with a large window")
        if _is_apart(x, kernel, steps, padding) and set(dilation) == {1}:
            return [_of_parts(call, x, kernel, reductions.amax), None]
        nest, whole = _by_axes(call, x, "max", kernel, steps, padding, dilation, fill)
        return call.finish_all(nest, [(whole, range(x.rank)), None])
    if placed and not taps and spec.device == "cpu":
        raise NotLowered("positions of 64 bits, which a loop over 32 bits is slow to make")
    nest = call.nest(spec.shape, extra=[(x, rows_alone(x, rank))])
    window = _window(nest, x, kernel, steps, padding, dilation, fill)
    if not placed:
        return call.finish_all(nest, [(reduce(lambda a, b: a.maximum(b), window), None), None])
    first = x.rank - rank
    starts = [nest.position(first + d) * steps[d] - padding[d] for d in range(rank)]
    largest, tap = _largest(window, _first_tap(starts, kernel, padding, dilation))
    if taps:
        return call.finish_all(nest, [(largest, None), (tap, None)])
    return call.finish_all(
        nest, [(largest, None), (_place(x, tap, starts, kernel, dilation), None)]
    )


def _largest(window: Sequence[Expr], tap: Expr) -> tuple[Expr, Expr]:
    """(maximum, number of its element): the first of those that are equal, the last NaN, or `tap`
    where all are minus infinity."""
    largest = window[0].lift(-math.inf)
    for number, value in enumerate(window):
        larger = (value > largest) | value.isnan()
        largest, tap = where(larger, value, largest), where(larger, number, tap)
    return largest, tap


def _first_tap(starts: Sequence[Expr], kernel, padding, dilation) -> Expr:
    """The number of a window's first element inside the image."""
    tap = starts[0].lift(0)
    for start, size, beyond, step in zip(starts, kernel, padding, dilation):
        tap = tap * size
        if beyond:
            outside = (-start).maximum(0)
            tap = tap + (outside if step == 1 else (outside + (step - 1)).floor_div(step))
    return tap.to(dtypes.i32)


def _place(x: Tensor, tap: Expr, starts: Sequence[Expr], kernel, dilation) -> Expr:
    """The row-major position in the image of a window's element number `tap`."""
    place, tap, below = starts[0].lift(0), tap.to(dtypes.i64), 1
    sizes = x.shape[-len(kernel) :]
    for start, size, count, step in reversed(list(zip(starts, sizes, kernel, dilation))):
        rest = tap.floor_div(count)
        place, tap = place + (start + (tap - rest * count) * step) * below, rest
        below = below * size
    return place


@lowers("aten.avg_pool2d.default")
def avg_pool2d(call: Call, x, *args, **options):
    return average(call, x, 2, *args, **options)


@lowers("aten.avg_pool3d.default")
def avg_pool3d(call: Call, x, *args, **options):
    return average(call, x, 3, *args, **options)


@lowers("torchweld.max_pool_taps.default")
def max_pool_taps(call: Call, x, kernel, *how):
    return _max_pool(call, x, len(kernel), kernel, *how, taps=True)


def average(
    call: Call, x: Tensor, rank: int, kernel_size, stride=(), padding=0, ceil_mode=False,
    count_include_pad=True, divisor_override=None,
) -> list:  # fmt: skip
    """The sum of each window's elements over their number; beyond the edge are zeros, which may
    count."""
    kernel, padding = _each(kernel_size, rank), _each(padding, rank)
    steps = _each(stride, rank) if stride else kernel
    alone = all(n == 1 for n in call.out.shape[-rank:])  # adaptive windows may all be the image
    whole = kernel == tuple(x.shape[-rank:]) and not any(padding) and alone
    if whole and divisor_override is None:
        return reductions.mean(call, x, range(-rank, 0), True)
    taps = math.prod(kernel)
    plain = divisor_override is None
    if taps > _LARGEST_AVERAGE and plain and _is_apart(x, kernel, steps, padding):
        return _of_parts(call, x, kernel, reductions.mean)
    uneven = plain and (ceil_mode or (any(padding) and not count_include_pad))
    if not call.out.dtype.is_float:
        raise NotLowered("a pooling of numbers that are no floats")
    if uneven and not _is_known(x, rank):
        raise NotLowered("a pooling with windows of several sizes")
    fill = 0.0 if any(padding) or ceil_mode else None
    how, dims = (kernel, steps, padding, (1,) * rank, fill), range(x.rank)
    if taps > _LARGEST_AVERAGE:
        nest, total = _by_axes(call, x, "sum", *how)
    else:
        nest = call.nest(call.out.shape, extra=[(x, rows_alone(x, rank))])
        total = reduce(lambda a, b: a + b, _window(nest, x, *how))
    if not uneven:
        return call.finish(nest, total / total.lift(divisor_override or taps), dims)
    first = x.rank - rank
    sides = map(Side, x.shape[first:], call.out.shape[first:], kernel, steps, padding)
    counts = [Counts(side, count_include_pad) for side in sides]
    places = [nest.position(first + k) for k in range(rank)]
    return call.finish(nest, total / divisor(nest, total, counts, places), dims)


def _is_known(x: Tensor, rank: int) -> bool:
    return all(isinstance(n, int) for n in x.shape[x.rank - rank :])


def _is_apart(x: Tensor, kernel, steps, padding) -> bool:
    """Whether windows lie side by side."""
    sizes = x.shape[-len(kernel) :]
    divide = _is_known(x, len(kernel)) and all(n % k == 0 for n, k in zip(sizes, kernel))
    return divide and x.dtype.is_float and kernel == steps and not any(padding)


def _of_parts(call: Call, x: Tensor, kernel, reduction: Callable[..., Tensor]) -> Tensor:
    """[..., H, W] -> [..., H / kernel, kernel, W / kernel, kernel], and what its windows have in
    all."""
    first, shape = x.rank - len(kernel), list(x.shape)
    sides = [n for size, k in zip(shape[first:], kernel) for n in (size // k, k)]
    parts = call.reshaped(x, (*shape[:first], *sides))
    return reduction(call, parts, range(first + 1, parts.rank, 2))


def rows_alone(x: Tensor, rank: int) -> list[int | None]:
    """The dimensions that are no image's."""
    return [*range(x.rank - rank), *(None,) * rank]


def _window(
    nest: Nest, x: Tensor, kernel, steps, padding, dilation, fill: float | None
) -> list[Expr]:
    """Each element of the window at the current position, `fill` where it is outside x; None if it
    never is."""
    first = x.rank - len(kernel)

    def element(*offsets: int) -> Expr:
        places: list = list(range(first))
        inside = nest.number(True, dtypes.b1)
        for k, offset in enumerate(offsets):
            shift = offset * dilation[k] - padding[k]
            if fill is not None:
                at = nest.position(first + k) * steps[k] + shift
                inside = inside & (at >= 0) & (at < x.shape[first + k])
            places.append(nest.at(first + k) * steps[k] + shift)
        if fill is None:
            return nest.read(x, places).widen()
        return nest.read(x, places, guard=inside, fill=fill).widen()

    return [element(*offsets) for offsets in product(*map(range, kernel))]


def _by_axes(
    call: Call, x: Tensor, monoid: str, kernel, steps, padding, dilation, fill: float | None
) -> tuple[Nest, Expr]:
    """What windows that are too large to be written out have in all, and the nest that it is in:
    along one axis of the image after the other, which is exact for maxima and no less so for sums.
    `fill`: outside the image; None if no window reaches there."""
    first = x.rank - len(kernel)
    between = x.dtype if monoid == "max" else dtypes.compute(x.dtype)
    moved = [d for d in range(len(kernel)) if (kernel[d], steps[d], padding[d]) != (1, 1, 0)]
    by_steps = sorted(moved, key=lambda d: (-steps[d], d))  # the sooner there are few
    shape = list(x.shape)
    for d in by_steps:
        at, length = first + d, x.shape[first + d]
        shape[at] = call.out.shape[at]
        line = _Line(kernel[d], steps[d], padding[d], dilation[d], length, fill)
        line = replace(line, fill=None) if line.stays_inside(shape[at]) else line
        nest, total = _along(call, x, shape, at, monoid, line)
        if d != by_steps[-1]:
            made = Spec(tuple(shape), contiguous_strides(shape), between, x.device)
            x = nest.store(total, made, range(len(shape)))
            nest.close()
    return nest, total


@dataclass(frozen=True, slots=True)
class _Line:
    """Windows along one axis of so many elements, `fill` outside them."""

    taps: int
    step: int
    padding: int
    dilation: int
    length: Size
    fill: float | None

    def stays_inside(self, count: Size) -> bool:
        """Whether so many windows are known to read nothing outside."""
        last = (count - 1) * self.step + (self.taps - 1) * self.dilation
        return self.padding == 0 and isinstance(room := self.length - last, int) and room > 0

    def read(self, nest: Nest, x: Tensor, d: int, tap: Affine) -> Expr:
        """The element at this tap of the window at the nest's position along dimension `d`."""
        index = nest.at(d) * self.step + tap * self.dilation + -self.padding
        places = [index if k == d else k for k in range(x.rank)]
        if self.fill is None:
            return nest.read(x, places).widen()
        at = nest.index_value(index)
        inside = (at >= 0) & (at < self.length)
        return nest.read(x, places, guard=inside, fill=self.fill).widen()


def _along(
    call: Call, x: Tensor, shape: Sequence[Size], d: int, monoid: str, line: _Line
) -> tuple[Nest, Expr]:
    """A nest of results, and what each of their windows along one dimension has in all."""
    known = [k if k != d else None for k in range(x.rank)]
    if line.taps > _LONGEST_LINE:
        nest = call.nest((*shape, line.taps), extra=[(x, known)])
        return nest, nest.reduce(monoid, line.read(nest, x, d, nest.at(x.rank)), (x.rank,))
    nest = call.nest(shape, extra=[(x, known)])
    taps = [line.read(nest, x, d, affine.constant(tap)) for tap in range(line.taps)]
    return nest, reduce((lambda a, b: a.maximum(b)) if monoid == "max" else operator.add, taps)


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for all dimensions of an image, or one for each."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values
