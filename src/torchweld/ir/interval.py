"""Between which numbers the values of a Comp lie, as far as their making tells.

    minimum(maximum(load x[i], 0), 9)   ->   (0, 9)
    cast (index i * 0.5 : f32) : i64    ->   (0, 4), of an axis of 9

Where nothing more is known, and where a result could wrap, it is what the type holds. Floats have
finite bounds only where they are made of indices and constants: then none is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Const,
    Index,
    Instr,
    Load,
    Op,
    Pick,
    Reduce,
    Scan,
    operands,
)
from torchweld.ir.size import Size, product

Bounds = tuple[int, int]  # smallest and largest, both included; of floats they are floats
Known = Sequence[Bounds]  # of the values before
OfBuffer = Callable[[str], "Bounds | None"]


_NUMPY = {dtypes.f32: np.float32, dtypes.f64: np.float64}
_ROUNDED = 1e-5  # relatively, more than a few roundings of float32


def stored_bounds(comp: Comp, buffer: str, of_buffer: OfBuffer) -> Bounds | None:
    """Of what `comp` stores to `buffer`; None where that is not all that the buffer holds.
    `of_buffer`: what is known of buffers that `comp` loads."""
    stores = [s for s in comp.stores if s.buffer == buffer]
    if any(s.combine or s.init is not None or s.guard is not None for s in stores):
        return None
    known = bounds(comp, of_buffer)
    lows, highs = zip(*(known[s.value] for s in stores))
    return min(lows), max(highs)


def bounds(comp: Comp, of_buffer: OfBuffer) -> list[Bounds]:
    """Of each value."""
    extents = comp.extents
    known: list[Bounds] = []
    for instr in comp.body:
        found, limits = _of(instr, comp, known, extents, of_buffer), type_bounds(instr.dtype)
        fits = found is not None and limits[0] <= found[0] and found[1] <= limits[1]
        known.append(found if fits else limits)
    return known


def type_bounds(dtype: DType) -> Bounds:
    """Of all values of a type."""
    if dtype.is_float:
        return -math.inf, math.inf
    if dtype.kind in ("uint", "bool"):
        return 0, 1 if dtype.kind == "bool" else 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def affine_bounds(index: Affine, extents: Mapping[str, Size]) -> Bounds | None:
    """Of an affine map over axes; None where a size is not known."""
    low = high = index.const
    for name, step in index.terms:
        if not isinstance(step, int) or not isinstance(extents[name], int):
            return None
        reach = step * max(extents[name] - 1, 0)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return (low, high) if isinstance(low, int) else None


def _of(instr: Instr, comp: Comp, known: Known, extents, of_buffer: OfBuffer) -> Bounds | None:
    if instr.dtype.is_float:
        return _of_float(instr, known)
    if isinstance(instr, Const):
        return None if isinstance(instr.value, float) else (int(instr.value), int(instr.value))
    if isinstance(instr, Index):
        return affine_bounds(instr.map, extents)
    if isinstance(instr, Load):
        return _loaded(instr, of_buffer(instr.buffer))
    if isinstance(instr, Cast):
        return _whole(known[instr.arg])
    if isinstance(instr, Op):
        rule = _RULES.get(instr.name)
        return rule(*(known[a] for a in instr.args)) if rule else None
    if isinstance(instr, Pick):
        return _position(comp.body[instr.arg], instr.item, known)
    return _gathered(instr, known[operands(instr)[0]], extents)


def _gathered(instr: Reduce | Scan, known: Bounds, extents: Mapping[str, Size]) -> Bounds | None:
    """Of a reduction or a scan of values within `known`. A sum of n terms is at most n times one,
    a running sum has between one and n."""
    if instr.monoid in ("max", "min", "sort"):
        return known
    axes = instr.axes if isinstance(instr, Reduce) else (instr.axis,)
    terms = product(extents[a] for a in axes)
    if instr.monoid != "sum" or not isinstance(terms, int) or terms < 1:
        return None
    sums = (known[0] * terms, known[1] * terms)
    return sums if isinstance(instr, Reduce) else (min(known[0], sums[0]), max(known[1], sums[1]))


def _whole(known: Bounds) -> Bounds | None:
    """Of a conversion to integers. A compiler may leave out roundings (fused multiply-adds)."""
    low, high = known
    if isinstance(low, int):
        return known
    if not math.isfinite(high - low):
        return None
    return int(low - _ROUNDED * max(1.0, abs(low))), int(high + _ROUNDED * max(1.0, abs(high)))


def _of_float(instr: Instr, known: Known) -> Bounds | None:
    """Rounding keeps the order of numbers: the bounds are rounded as the values are."""
    if isinstance(instr, Const):
        found = [float(instr.value)]
    elif isinstance(instr, Cast):
        found = known[instr.arg]
    elif isinstance(instr, Op) and instr.name in _OF_FLOATS:
        args = [known[a] for a in instr.args]
        if not all(math.isfinite(end) for ends in args for end in ends):
            return None
        found = _OF_FLOATS[instr.name](*args)
    else:
        return None
    if instr.dtype not in _NUMPY:
        return None
    with np.errstate(over="ignore"):
        rounded = np.array(found, np.float64).astype(_NUMPY[instr.dtype])
    return (float(rounded.min()), float(rounded.max())) if np.isfinite(rounded).all() else None


def _loaded(load: Load, known: Bounds | None) -> Bounds | None:
    """Of a read from a buffer of which that is known."""
    if known is None or load.guard is None or isinstance(load.fill, float):
        return known if load.guard is None else None
    return min(known[0], int(load.fill)), max(known[1], int(load.fill))


def _position(reduce: Reduce, item: int, known: Known) -> Bounds | None:
    """What argmax and argmin find is one of the positions given."""
    return known[reduce.args[1]] if reduce.monoid.startswith("arg") and item == 1 else None


def _product(a: Bounds, b: Bounds) -> Bounds:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _common_bits(a: Bounds, b: Bounds) -> Bounds | None:
    """Of `a & b`: what is not negative bounds it."""
    highest = [high for low, high in (a, b) if low >= 0]
    return (0, min(highest)) if highest else None


def _shifted_right(a: Bounds, b: Bounds) -> Bounds | None:
    """By a known number of bits."""
    known = b[0] == b[1] and 0 <= b[0] < 64
    return (a[0] >> b[0], a[1] >> b[0]) if known else None


def _remainder(a: Bounds, b: Bounds) -> Bounds | None:
    return (0, b[1] - 1) if b[0] > 0 else None


def _either(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _quotient(a: Bounds, b: Bounds) -> Bounds | None:
    """Rounded down or towards zero, by what is positive."""
    if b[0] <= 0:
        return None
    corners = [x // y for x in a for y in b]
    return min(corners), max(corners) + (a[0] < 0)


_RULES: dict[str, Callable[..., Bounds | None]] = {
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (max(a[0], -a[1], 0), max(-a[0], a[1])),
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "where": lambda chosen, a, b: (b, a)[chosen[0]] if chosen[0] == chosen[1] else _either(a, b),
    "lt": lambda a, b: (a[1] < b[0], a[0] < b[1]),
    "le": lambda a, b: (a[1] <= b[0], a[0] <= b[1]),
    "gt": lambda a, b: (a[0] > b[1], a[1] > b[0]),
    "ge": lambda a, b: (a[0] >= b[1], a[1] >= b[0]),
    "eq": lambda a, b: (a[0] == a[1] == b[0] == b[1], a[0] <= b[1] and b[0] <= a[1]),
    "ne": lambda a, b: (a[1] < b[0] or b[1] < a[0], not a[0] == a[1] == b[0] == b[1]),
    "logical_not": lambda a: (1 - a[1], 1 - a[0]),
    "remainder": _remainder,
    "floor_div": _quotient,
    "trunc_div": _quotient,
    "bit_and": _common_bits,
    "shr": _shifted_right,
}

_OF_FLOATS = {n: _RULES[n] for n in ("neg", "add", "sub", "mul", "minimum", "maximum")} | {
    "floor": lambda a: (math.floor(a[0]), a[1]),
    "ceil": lambda a: (a[0], math.ceil(a[1])),
}
