"""The scalar operation table: one row per operation, read by the checker, the interpreter, the cost
model and (by name) by each code printer.

`result` says how the dtype follows from the arguments:
  same   all arguments have one dtype, the result has it too
  bool   all arguments have one dtype, the result is b1
  where  (b1, t, t) -> t
  free   given by the instruction (philox, and what takes bits: BITS)
`cost` is in units of one fused multiply-add; `sfu` marks what a GPU computes on its
special-function units. `meaning` evaluates the operation on torch tensors: it is the definition, in
the dtype of its arguments.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir import philox


@dataclass(frozen=True, slots=True)
class ScalarOp:
    name: str
    arity: int
    result: str
    kinds: str  # which argument kinds are allowed: f(loat), i(nt of either sign), b(ool)
    cost: float
    meaning: Callable
    sfu: bool = False
    commutative: bool = False  # to the bit
    exact: bool = False  # it decides something discrete: its arguments must be the rounded ones


def _of_any_quotient(function: Callable) -> Callable:
    """A remainder. If the quotient is beyond float32 (6 / 1e-38), torch's vectors give NaN, and one
    number by itself what is right: NaN is asked for again in float64, where both are right."""

    def meaning(a, b):
        found = function(a, b)
        if not found.is_floating_point() or found.dtype == torch.float64:
            return found
        again = function(*(v.double() if isinstance(v, torch.Tensor) else v for v in (a, b)))
        return torch.where(found.isnan(), again.to(found.dtype), found)

    return meaning


def _floor_div(a, b):
    return torch.div(a, b, rounding_mode="floor")


def _trunc_div(a, b):
    return torch.div(a, b, rounding_mode="trunc")


def _unary(name, fn, cost=1.0, kinds="f", **flags):
    return ScalarOp(name, 1, "same", kinds, cost, fn, **flags)


def _binary(name, fn, cost=1.0, kinds="fi", **flags):
    return ScalarOp(name, 2, "same", kinds, cost, fn, **flags)


def _compare(name, fn, **flags):
    return ScalarOp(name, 2, "bool", "fib", 1.0, fn, exact=True, **flags)


_ROWS = (
    _unary("neg", torch.neg, kinds="fi"),
    _unary("abs", torch.abs, kinds="fi"),
    _unary("sign", torch.sign, kinds="fi"),
    _unary("ceil", torch.ceil, exact=True),
    _unary("floor", torch.floor, exact=True),
    _unary("round", torch.round, exact=True),  # half to even
    _unary("trunc", torch.trunc, exact=True),
    _unary("sqrt", torch.sqrt, 4, sfu=True),
    _unary("rsqrt", torch.rsqrt, 4, sfu=True),
    _unary("reciprocal", torch.reciprocal, 4, sfu=True),
    _unary("exp", torch.exp, 8, sfu=True),
    _unary("exp2", torch.exp2, 8, sfu=True),
    _unary("expm1", torch.expm1, 12, sfu=True),
    _unary("log", torch.log, 12, sfu=True),
    _unary("log2", torch.log2, 12, sfu=True),
    _unary("log10", torch.log10, 12, sfu=True),
    _unary("log1p", torch.log1p, 14, sfu=True),
    _unary("sin", torch.sin, 20, sfu=True),
    _unary("cos", torch.cos, 20, sfu=True),
    _unary("tan", torch.tan, 24, sfu=True),
    _unary("asin", torch.asin, 24),
    _unary("acos", torch.acos, 24),
    _unary("atan", torch.atan, 24),
    _unary("sinh", torch.sinh, 24, sfu=True),
    _unary("cosh", torch.cosh, 24, sfu=True),
    _unary("tanh", torch.tanh, 14, sfu=True),
    _unary("asinh", torch.asinh, 30),
    _unary("acosh", torch.acosh, 30),
    _unary("atanh", torch.atanh, 30),
    _unary("erf", torch.erf, 20, sfu=True),
    _unary("erfc", torch.erfc, 20, sfu=True),
    _unary("erfinv", torch.erfinv, 30, sfu=True),
    _unary("lgamma", torch.lgamma, 30, sfu=True),
    _unary("sigmoid", torch.sigmoid, 12, sfu=True),
    ScalarOp("isnan", 1, "bool", "f", 1.0, torch.isnan),
    ScalarOp("isinf", 1, "bool", "f", 1.0, torch.isinf, exact=True),
    ScalarOp("logical_not", 1, "bool", "b", 1.0, torch.logical_not),
    _unary("bit_not", torch.bitwise_not, kinds="i"),
    _binary("add", torch.add, commutative=True),
    _binary("sub", torch.sub),
    _binary("mul", torch.mul, commutative=True),
    _binary("div", torch.div, 4, kinds="f", sfu=True),
    _binary("floor_div", _floor_div, 8, exact=True),
    _binary("trunc_div", _trunc_div, 8, exact=True),
    # the sign of the divisor, as in Python, and of the dividend, as in C
    _binary("remainder", _of_any_quotient(torch.remainder), 10, exact=True),
    _binary("fmod", _of_any_quotient(torch.fmod), 10, exact=True),
    _binary("pow", torch.pow, 30, sfu=True),
    _binary("atan2", torch.atan2, 30, kinds="f"),
    _binary("copysign", torch.copysign, kinds="f"),
    _binary("hypot", torch.hypot, 10, kinds="f", commutative=True, sfu=True),
    _binary("nextafter", torch.nextafter, 6, kinds="f", exact=True),
    _binary("minimum", torch.minimum),  # NaN if either is; of 0.0 and -0.0 the order decides
    _binary("maximum", torch.maximum),
    _binary("fmin", torch.fmin),  # the other if one is NaN
    _binary("fmax", torch.fmax),
    _binary("bit_and", torch.bitwise_and, kinds="ib", commutative=True),
    _binary("bit_or", torch.bitwise_or, kinds="ib", commutative=True),
    _binary("bit_xor", torch.bitwise_xor, kinds="ib", commutative=True),
    _binary("shl", torch.bitwise_left_shift, kinds="i"),
    _binary("shr", torch.bitwise_right_shift, kinds="i"),
    _compare("eq", torch.eq, commutative=True),
    _compare("ne", torch.ne, commutative=True),
    _compare("lt", torch.lt),
    _compare("le", torch.le),
    _compare("gt", torch.gt),
    _compare("ge", torch.ge),
    ScalarOp("where", 3, "where", "fib", 1.0, torch.where),
    # (seed i64, index i64) -> f32 uniform in [0, 1): Philox4x32-10 of the pair; the same on every
    # device (ir/philox.py).
    ScalarOp("philox", 2, "free", "i", 30.0, philox.uniform),
)

# The bits of a float as an integer of its size, and back: name -> (argument, result).
BITS = {
    name: pair
    for number, whole in (
        (dtypes.f8e4m3, dtypes.u8), (dtypes.f8e5m2, dtypes.u8), (dtypes.bf16, dtypes.i16),
        (dtypes.f16, dtypes.i16), (dtypes.f32, dtypes.i32),
    )
    for name, pair in ((f"{number}_bits", (number, whole)), (f"{number}_of", (whole, number)))
}  # fmt: skip


def _taking_bits(name: str, source: DType, target: DType) -> ScalarOp:
    """In float64, which stands for every float, the argument is rounded first."""
    before, after = map(dtypes.to_torch, (source, target))

    def meaning(x):
        return x.to(before).view(after)

    return ScalarOp(name, 1, "free", "f" if source.is_float else "i", 0.0, meaning, exact=True)


TABLE = {row.name: row for row in _ROWS}
TABLE |= {name: _taking_bits(name, *pair) for name, pair in BITS.items()}
COMPARISONS = frozenset(n for n, row in TABLE.items() if row.result == "bool" and row.arity == 2)

