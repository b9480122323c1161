"""Tuple reductions as plain ones: what a back end that passes over rows needs to know.

    welford(x)          m = sum(x / n), s = sum(x - m);
                        (m + s / n, sum((x - m)^2) - s^2 / n); of many, m is a sum in float64
    logsumexp(x)        m = max(x), s = 0 where m is -inf, else m;  (m, sum(exp(x - s)))
    argmax(x, at)       m = max(x);  (m, min(at where x == m or isnan(x)))      argmin alike

All exact restatements: what the rounding of m misses is added to the mean, so that that of equal
values is that value, and taken from the squares.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torchweld.core import dtypes
from torchweld.ir.affine import Affine, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Instr,
    Load,
    Op,
    Pick,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
)
from torchweld.ir.size import Size, product

TUPLES = ("welford", "logsumexp", "argmax", "argmin")
_LONG = 4096  # elements, beyond which a mean near zero is not as exact as eager's otherwise


def expanded(comp: Comp) -> Comp:
    """`comp` without tuple reductions and Picks; itself if it has none."""
    if not any(isinstance(i, Reduce) and i.monoid in TUPLES for i in comp.body):
        return comp
    b = BodyBuilder()
    results: list[tuple[Value, ...]] = []
    for instr in comp.body:
        results.append(_emit(comp, b, instr, results))
    images = [r[0] for r in results]
    return replace(comp, body=b.body, stores=tuple(_store(s, images) for s in comp.stores))


def _emit(comp: Comp, b: BodyBuilder, instr: Instr, results: list[tuple[Value, ...]]):
    if isinstance(instr, Pick):
        return (results[instr.arg][instr.item],)
    images = [r[0] for r in results]
    if isinstance(instr, Reduce) and instr.monoid in TUPLES:
        args = tuple(images[a] for a in instr.args)
        return _RULES[instr.monoid](comp, b, instr, args)
    return (b.emit(with_values(instr, images)),)


def with_values(instr: Instr, images: list[Value]) -> Instr:
    """`instr` with each value replaced by its image."""
    if isinstance(instr, (Op, Reduce)):
        return replace(instr, args=tuple(images[a] for a in instr.args))
    if isinstance(instr, (Cast, Scan, Pick)):
        return replace(instr, arg=images[instr.arg])
    if isinstance(instr, Load):
        guard = None if instr.guard is None else images[instr.guard]
        return replace(instr, index=_refs(instr.index, images), guard=guard)
    return instr


def _store(store: Store, images: list[Value]) -> Store:
    guard = None if store.guard is None else images[store.guard]
    index = _refs(store.index, images)
    return replace(store, index=index, value=images[store.value], guard=guard)


def _refs(index, images: list[Value]):
    return tuple(i if isinstance(i, Affine) else Ref(images[i.value]) for i in index)


def _welford(comp: Comp, b: BodyBuilder, instr: Reduce, args):
    near, missed, squares = moments(b, args[0], instr, product(comp.extent(a) for a in instr.axes))
    return b.op("add", near, missed), squares


def moments(b: BodyBuilder, x: Value, instr: Reduce, number: Size) -> tuple[Value, Value, Value]:
    """What `instr`, a welford of `number` elements `x`, gives: the mean as the sum of a value and
    what its rounding misses, and the squares around that sum."""
    count = b.cast(b.index(constant(number)), instr.dtype)
    long = not isinstance(number, int) or number > _LONG
    if long and not _was_narrow(b, x):
        near, missed = _long_mean(b, x, instr, count)
    else:
        share = b.op("mul", x, b.op("reciprocal", count))  # large values do not overflow
        near, missed = b.reduce("sum", (share,), instr.axes), None
    off = b.op("sub", x, near)
    squares = b.reduce("sum", (b.op("mul", off, off),), instr.axes)
    rest = b.reduce("sum", (off,), instr.axes)
    share = b.op("div", rest, count)
    squares = b.op("sub", squares, b.op("mul", rest, share))
    return near, share if missed is None else missed, squares


def _was_narrow(b: BodyBuilder, value: Value) -> bool:
    """A 16-bit value widened: means of such need no more than float32."""
    instr = b[value]
    return isinstance(instr, Cast) and b[instr.arg].dtype.is_low_precision


def _long_mean(b: BodyBuilder, x: Value, instr: Reduce, count: Value) -> tuple[Value, Value]:
    """The mean as a sum in float64: a correction in float32 would have the rounding of x - m, which
    is the same for all x of one magnitude and does not average out."""
    total = b.reduce("sum", (b.cast(x, dtypes.f64),), instr.axes)
    mean = b.op("div", total, b.cast(count, dtypes.f64))
    near = b.cast(mean, instr.dtype)
    return near, b.cast(b.op("sub", mean, b.cast(near, dtypes.f64)), instr.dtype)


def _logsumexp(comp: Comp, b: BodyBuilder, instr: Reduce, args):
    top = b.reduce("max", args, instr.axes)
    lowest = b.op("eq", top, b.const(-math.inf, instr.dtype))
    shift = b.op("where", lowest, b.const(0.0, instr.dtype), top)
    return top, b.reduce("sum", (b.op("exp", b.op("sub", args[0], shift)),), instr.axes)


def _arg_extreme(comp: Comp, b: BodyBuilder, instr: Reduce, args):
    value, position = args
    best = b.reduce(instr.monoid.removeprefix("arg"), (value,), instr.axes)
    hit = b.op("eq", value, best)
    if instr.dtype.is_float:
        hit = b.op("bit_or", hit, b.op("isnan", value))
    kind = b[position].dtype
    at = b.op("where", hit, position, b.const(2 ** (kind.bits - 1) - 1, kind))
    return best, b.reduce("min", (at,), instr.axes)


_RULES = {
    "welford": _welford,
    "logsumexp": _logsumexp,
    "argmax": _arg_extreme,
    "argmin": _arg_extreme,
}
