"""What a position of an image has a share in, after the image was resized by any factor: a band of
places whose source, computed as ATen computes it, is near the position.

    source of a place:  place * step                  corners aligned: (size - 1) / (made - 1)
                        (place + 1/2) * step - 1/2    else, 1 / scale or size / made
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

from torchweld.capture.lowering.bands import Band
from torchweld.capture.lowering.expr import Expr, where
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.errors import NotLowered

_CUBIC = -0.75
_ROUNDING = 0.01  # places by which a first place that is computed in float32 may be off
Taps = Callable[[Expr, int], Iterator[tuple[Expr, Expr]]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """`taps(source, size)`: positions (i32) and their weights; none is `reach` away from the
    source or further. `inside`: a source before the first position is taken for that."""

    reach: int
    taps: Taps
    inside: bool


@dataclass(frozen=True, slots=True)
class _Sources:
    """The source of a place, a number or a value."""

    step: float
    aligned: bool
    inside: bool

    def of(self, place):
        if self.aligned:
            return place * self.step
        source = (place + 0.5) * self.step - 0.5
        if not self.inside:
            return source
        return source.maximum(0.0) if isinstance(source, Expr) else max(source, 0.0)

    def first(self, position, reach: int):
        """The place whose source is `reach` before a position, less rounding."""
        middle = 0.0 if self.aligned else 0.5
        return position * (1 / self.step) + ((middle - reach) / self.step - middle - _ROUNDING)


def band(
    kernel: Kernel, size: int, made: int, aligned: bool, scale: float | None, dtype: DType
) -> Band:
    """Of an image of `size` positions made to `made` places, in one dimension; in `dtype`."""
    if not isinstance(size, int) or not isinstance(made, int) or not size or not made:
        raise NotLowered("an image of sizes that are known at the call")
    sources = _Sources(_step(size, made, aligned, scale), aligned, kernel.inside)
    count = _count(kernel, size, made, sources)
    from_start = count >= made

    def first(at: Expr) -> Expr:
        if from_start:
            return at.lift(0)
        return sources.first(at.to(dtype), kernel.reach).floor().to(dtypes.i32).maximum(0)

    def shares(at: Expr, place: Expr) -> list[tuple[Expr, Expr]]:
        taps = kernel.taps(sources.of(place.to(dtype)), size)
        return [(position.eq(at), weight) for position, weight in taps]

    def has(at: Expr, place: Expr) -> Expr:
        return reduce(lambda a, b: a | b, (here for here, _ in shares(at, place)))

    def term(value: Expr, at: Expr, place: Expr) -> Expr:
        weights = (where(here, weight, 0.0) for here, weight in shares(at, place))
        return value * reduce(lambda a, b: a + b, weights)

    return Band(made, min(count, made), first, has, term)


def _step(size: int, made: int, aligned: bool, scale: float | None) -> float:
    if aligned:
        return (size - 1) / (made - 1) if made > 1 else 0.0
    return 1.0 / scale if scale else size / made


def _count(kernel: Kernel, size: int, made: int, sources: _Sources) -> int:
    """Places from the first that is computed to the last that has a share, at most."""
    if not sources.step:
        return made
    last = [-1] * size
    for place in range(made):
        base = math.floor(sources.of(place))
        low, high = (min(max(base + b, 0), size - 1) for b in (1 - kernel.reach, kernel.reach))
        for position in range(low, high + 1):
            last[position] = place
    firsts = (max(0, math.floor(sources.first(i, kernel.reach))) for i in range(size))
    return 2 + max(end - start for start, end in zip(firsts, last))


def cubic_weights(x):
    """Keys' weights of four positions, by the distance x from the second and y from the third. The
    outer ones are A * x * y^2: in the polynomial of their own distances most cancels."""
    y = 1.0 - x
    return _CUBIC * x * y * y, _near(x), _near(y), _CUBIC * y * x * x


def _near(x):
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1.0


def _linear(source: Expr, size: int) -> Iterator[tuple[Expr, Expr]]:
    first = source.to(dtypes.i32).minimum(size - 1)
    beyond = source - first.to(source.dtype)
    yield first, 1.0 - beyond
    yield (first + 1).minimum(size - 1), beyond


def _cubic(source: Expr, size: int) -> Iterator[tuple[Expr, Expr]]:
    base = source.floor()
    first = base.to(dtypes.i32)
    for tap, weight in enumerate(cubic_weights(source - base), -1):
        yield (first + tap).maximum(0).minimum(size - 1), weight


LINEAR, CUBIC = Kernel(1, _linear, True), Kernel(2, _cubic, False)
