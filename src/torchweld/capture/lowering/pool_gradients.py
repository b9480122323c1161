"""Gradients of windows: of each position, the sum over the windows that hold it, in order, so that
no two threads add to one element."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir.affine import Affine

MOST_WINDOWS = 27  # that hold a position


@dataclass(frozen=True, slots=True)
class Side:
    """Windows along one dimension of an image."""

    size: int
    windows: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    @property
    def holding(self) -> int:
        return holding(self.kernel, self.stride, self.dilation)


def holding(kernel: int, stride: int, dilation: int) -> int:
    """How many windows hold a position along one dimension, at most."""
    return kernel if stride == 1 else -(-((kernel - 1) * dilation + 1) // stride)


@dataclass(frozen=True, slots=True)
class _Held:
    """A window that holds a position, as its element number `tap`, if all of `inside` are true."""

    window: Affine | Expr
    tap: int | Expr
    inside: tuple[Expr, ...]


def _sides(size, windows, kernel, stride, padding, dilation=None) -> list[Side]:
    sides = list(map(Side, size, windows, kernel, stride, padding, dilation or (1,) * len(kernel)))
    if not all(isinstance(n, int) for n in (*size, *windows)):
        raise NotLowered("windows of an image whose size is known at the call")
    if math.prod(side.holding for side in sides) > MOST_WINDOWS:
        raise NotLowered("positions that many windows hold")
    return sides


def _holding(nest: Nest, d: int, side: Side) -> list[_Held]:
    """The windows that hold the position along dimension d, in order."""
    return list((_one_by_one if side.stride == 1 else _in_steps)(nest, d, side))


def _one_by_one(nest: Nest, d: int, side: Side) -> Iterator[_Held]:
    for tap in reversed(range(side.kernel)):
        shift = side.padding - tap * side.dilation
        window, inside = nest.at(d) + shift, []
        if shift < 0:
            inside.append(nest.index_value(window) >= 0)
        if side.size - 1 + shift >= side.windows:
            inside.append(nest.index_value(window) < side.windows)
        yield _Held(window, tap, tuple(inside))


def _in_steps(nest: Nest, d: int, side: Side) -> Iterator[_Held]:
    """The last window that may hold it begins at the last multiple of the stride. In 32 bits, as
    nothing is negative before it is divided: a GPU divides these fast."""
    step, first = side.stride, side.padding // side.stride
    at = nest.position(d).to(dtypes.i32) + side.padding
    last = at.trunc_div(step)
    rest = at - last * step
    for back in reversed(range(side.holding)):
        window, offset, inside = last - back, rest + back * step, []
        if first < back:
            inside.append(window >= 0)
        if (side.size - 1 + side.padding) // step - back >= side.windows:
            inside.append(window < side.windows)
        if back * step + step > side.reach:
            inside.append(offset < side.reach)
        if side.dilation > 1:
            inside.append(offset.remainder(side.dilation).eq(0))
            offset = offset.trunc_div(side.dilation)
        yield _Held(window.to(dtypes.i64), offset, tuple(inside))


def _guard(held: Sequence[_Held]) -> Expr | None:
    conditions = [c for h in held for c in h.inside]
    return reduce(lambda a, b: a & b, conditions) if conditions else None


def _sum(terms) -> Expr:
    return reduce(lambda a, b: a + b, terms)


@lowers("torchweld.avg_pool_gradient.default")
def average(
    call: Call, gradient, size, _, kernel, stride, padding, ceil_mode, count_include_pad,
    divisor_override=None,
):  # fmt: skip
    rank = len(kernel)
    sides = _sides(size[-rank:], gradient.shape[-rank:], kernel, stride, padding)
    outer = list(range(len(size) - rank))
    nest = call.nest(call.out.shape, extra=[(gradient, (*outer, *(None,) * rank))])
    held = [_holding(nest, len(outer) + k, side) for k, side in enumerate(sides)]
    counts = [Counts(side, count_include_pad) for side in sides]
    alike = bool(divisor_override) or all(c.alike for c in counts)
    terms = []
    for windows in product(*held):
        places = [*outer, *(h.window for h in windows)]
        value = nest.read(gradient, places, guard=_guard(windows)).widen()
        terms.append(value if alike else value / divisor(nest, value, counts, places[-rank:]))
    total = _sum(terms)
    if alike:
        total = total / total.lift(divisor_override or math.prod(c.first for c in counts))
    return call.finish(nest, total)


class Counts:
    """How many elements of each window count, along one dimension."""

    def __init__(self, side: Side, with_padding: bool) -> None:
        self.side, self.with_padding = side, with_padding
        found = [self._count(w) for w in range(side.windows)]
        self.first, self.alike = found[0], len(set(found)) == 1

    def _count(self, window: int) -> int:
        side, beyond = self.side, self.side.padding if self.with_padding else 0
        start = window * side.stride - side.padding
        end = min(start + side.kernel, side.size + side.padding)
        return min(end, side.size + beyond) - max(start, -beyond)

    def of(self, window: Expr) -> Expr:
        side, beyond = self.side, self.side.padding if self.with_padding else 0
        start = window * side.stride - side.padding
        return (start + side.kernel).minimum(side.size + beyond) - start.maximum(-beyond)


def divisor(nest: Nest, like: Expr, counts: Sequence[Counts], windows) -> Expr:
    """The number of elements of a window that count; one for windows that are not there."""
    total = like.lift(math.prod(c.first for c in counts if c.alike))
    for count, window in zip(counts, windows):
        if not count.alike:
            at = nest.index_value(window) if isinstance(window, Affine) else window
            total = total * count.of(at).maximum(1).to(like.dtype)
    return total


@lowers("torchweld.max_pool_gradient.default")
def maximum(call: Call, gradient, taps, size, _, kernel, stride, padding, dilation, ceil_mode):
    """Of each window, where its maximum is this element."""
    rank = len(kernel)
    sides = _sides(size[-rank:], gradient.shape[-rank:], kernel, stride, padding, dilation)
    outer = list(range(len(size) - rank))
    apart = (*outer, *(None,) * rank)
    nest = call.nest(call.out.shape, extra=[(gradient, apart), (taps, apart)])
    held = [_holding(nest, len(outer) + k, side) for k, side in enumerate(sides)]
    terms = []
    for windows in product(*held):
        places, guard = [*outer, *(h.window for h in windows)], _guard(windows)
        here = nest.read(taps, places, guard=guard, fill=-1).to(dtypes.i32)
        value = nest.read(gradient, places, guard=guard).widen()
        terms.append(where(here.eq(_number(windows, kernel)), value, 0))
    return call.finish(nest, _sum(terms))


def _number(windows: Sequence[_Held], kernel) -> int | Expr:
    """The row-major number of an element in its window."""
    number: int | Expr = 0
    for held, count in zip(windows, kernel):
        number = held.tap + number * count
    return number


@lowers("aten.col2im.default")
def col2im(call: Call, columns, size, kernel, dilation, padding, stride):
    """[n, c * h * w, places] -> [n, c, *size]: the sums of what comes from a position."""
    if columns.rank != 3 or not columns.dtype.is_float:
        raise NotLowered("windows that ATen adds up")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    windows = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(size, padding, reach, stride)]
    sides = _sides(size, windows, kernel, stride, padding, dilation)
    shape = call.out.shape
    columns = call.reshaped(columns, (*shape[:2], *kernel, *windows))
    nest = call.nest(shape, extra=[(columns, (0, 1, None, None, None, None))])
    held = [_holding(nest, 2 + k, side) for k, side in enumerate(sides)]
    terms = []
    for pair in product(*held):
        at = [*(_at(h.tap) for h in pair), *(h.window for h in pair)]
        terms.append(nest.read(columns, [0, 1, *at], guard=_guard(pair)).widen())
    return call.finish(nest, _sum(terms))


def _at(tap: int | Expr) -> Affine | Expr:
    """A place to read: numbers alone would be dimensions of the nest."""
    return Affine((), tap) if isinstance(tap, int) else tap.to(dtypes.i64)
