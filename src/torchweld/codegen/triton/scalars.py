"""Scalar operations, casts and literals as Triton expressions.

Each row is the expression for floats, for integers and (where it differs) for bools. `FAST` rows
replace those of `FLOAT` in a kernel all of whose float results are stored in 16 bits: hardware
approximations within two units in the last place of float32, where the precise ones are within one.
"""

from __future__ import annotations

import math

from torchweld.codegen import float8
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.scalar import BITS

TYPES = {
    dtypes.f64: "tl.float64", dtypes.f32: "tl.float32", dtypes.f16: "tl.float16",
    dtypes.bf16: "tl.bfloat16", dtypes.i64: "tl.int64", dtypes.i32: "tl.int32",
    dtypes.i16: "tl.int16", dtypes.i8: "tl.int8", dtypes.u8: "tl.uint8", dtypes.b1: "tl.int1",
    dtypes.f8e4m3: "tl.uint8", dtypes.f8e5m2: "tl.uint8",
}  # fmt: skip
SIGNATURE = {
    dtypes.f64: "fp64", dtypes.f32: "fp32", dtypes.f16: "fp16", dtypes.bf16: "bf16",
    dtypes.i64: "i64", dtypes.i32: "i32", dtypes.i16: "i16", dtypes.i8: "i8", dtypes.u8: "u8",
    dtypes.b1: "i1", dtypes.f8e4m3: "u8", dtypes.f8e5m2: "u8",
}  # fmt: skip

_LIBDEVICE = [
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "exp2",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erfc",
    "erfinv",
    "lgamma",
    "rsqrt",
    "trunc",
    "exp",
]

# The number nearest to 1 / x, as a division gives: both are rounded as IEEE 754 says. On sm_90
# MUFU.RCP and three multiply-adds, where a division has five and FCHK; nvcc writes 1.0f / x so.
RECIPROCAL = "libdevice.rcp_rn({0})"

# Of many numbers and one divisor. Three norms of one tensor (three quotients an element, 18 million
# elements) took an H200 138 us with divisions, 90 so.
QUOTIENT = "_quotient({0}, {1})"

FLOAT = {name: f"libdevice.{name}({{0}})" for name in _LIBDEVICE} | {
    "neg": "({0} * -1.0)",  # Triton's -x is 0 - x, which of 0 is 0
    "abs": "tl.abs({0})",
    "sign": "(({0} > 0).to({0}.dtype) - ({0} < 0).to({0}.dtype))",
    "ceil": "tl.ceil({0})",
    "floor": "tl.floor({0})",
    "round": "libdevice.rint({0})",
    "sqrt": "libdevice.sqrt_rn({0})",
    "reciprocal": RECIPROCAL,
    "erf": "tl.erf({0})",
    "sigmoid": RECIPROCAL.format("1 + libdevice.exp(-{0})"),
    "isnan": "({0} != {0})",
    "isinf": '(tl.abs({0}) == float("inf"))',
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "libdevice.div_rn({0}, {1})",
    "floor_div": "_floor_div({0}, {1})",
    "trunc_div": "libdevice.trunc(libdevice.div_rn({0}, {1}))",
    "remainder": "_remainder({0}, {1})",
    "fmod": "_fmod({0}, {1})",
    "pow": "libdevice.pow({0}, {1})",
    "atan2": "libdevice.atan2({0}, {1})",
    "copysign": "libdevice.copysign({0}, {1})",
    "hypot": "libdevice.hypot({0}, {1})",
    "nextafter": "libdevice.nextafter({0}, {1})",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "fmin": "tl.minimum({0}, {1})",
    "fmax": "tl.maximum({0}, {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "where": "tl.where({0}, {1}, {2})",
}

FAST = {
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "div": "({0} / {1})",
    "reciprocal": "(1 / {0})",
    "sigmoid": "(1 / (1 + tl.exp(-{0})))",
    "tanh": "_tanh({0}.to(tl.float32)).to({0}.dtype)",
    "log1p": "_log_one_plus({0}.to(tl.float32)).to({0}.dtype)",
}

# In the same kernels, of a result that is only added to one: errors of some 1e-7 do not show.
NEAR_ONE = {"erf": "_erf_near_one({0})", "tanh": "(1 - 2 / (1 + tl.exp(2 * {0})))"}

_SHARED = ("abs", "sign", "add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "where")

INT = {name: FLOAT[name] for name in _SHARED} | {
    "neg": "-{0}",
    "bit_not": "~{0}",
    "floor_div": "_floor_div_int({0}, {1})",
    "trunc_div": "({0} // {1})",
    "remainder": "_remainder_int({0}, {1})",
    "fmod": "({0} % {1})",
    "pow": "_pow_int({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "fmin": "tl.minimum({0}, {1})",
    "fmax": "tl.maximum({0}, {1})",
    "bit_and": "({0} & {1})",
    "bit_or": "({0} | {1})",
    "bit_xor": "({0} ^ {1})",
    "shl": "({0} << {1})",
    "shr": "({0} >> {1})",
    "philox": "_uniform({0}, {1})",
}

# Bits of a value as another type of its size; 8-bit floats are bytes here.
for _name, (_, _type) in BITS.items():
    _text = "{0}" if "8" in _name else f"{{0}}.to({TYPES[_type]}, bitcast=True)"
    FLOAT[_name] = INT[_name] = _text

# One-bit integers are signed to Triton: True < False. Order is decided on the truth table instead.
BOOL = {
    "logical_not": "({0} == 0)",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "(({0} == 0) & {1})",
    "le": "(({0} == 0) | {1})",
    "gt": "({0} & ({1} == 0))",
    "ge": "({0} | ({1} == 0))",
    "bit_and": "({0} & {1})",
    "bit_or": "({0} | {1})",
    "bit_xor": "({0} ^ {1})",
    "where": "tl.where({0}, {1}, {2})",
}

MOST_POWER = 32  # beyond it, what is missed by what is carried along shows

# Operations whose constant arguments may be bare literals: the result keeps the other's dtype.
LITERAL_ARGUMENTS = frozenset(("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge"))


def operation(name: str, kind: str, fast: bool) -> str:
    """The expression, with {0}, {1}, ... for arguments, of an operation on arguments of a dtype
    kind."""
    table = {"float": FLOAT, "bool": BOOL}.get(kind, INT)
    return FAST[name] if fast and table is FLOAT and name in FAST else table[name]


def power(text: str, exponent: float, fast: bool) -> str:
    """A float to a power that is known, where the exponent is a whole number or half of an odd one;
    "" where it is another. libdevice's takes a logarithm and an exponential of more bits."""
    half = not float(exponent).is_integer()
    whole = abs(exponent) * 2 if half else abs(exponent)
    if not float(whole).is_integer() or not 2 <= whole <= MOST_POWER:
        return ""
    flags = f"{exponent < 0}, {half}, {not fast}"
    return f"_power({text}, {int(whole)}, {int(whole).bit_length()}, {flags})"


def cast(text: str, source: DType, target: DType) -> str:
    """Conversion by value, with torch's steps: floats of 16 and 8 bits convert from and to anything
    by way of f32."""
    if source == target:
        return text
    if source.is_float8:
        return cast(float8.widened("_from_float8", text, source), dtypes.f32, target)
    if target == dtypes.b1:
        return f"({text} != 0)"
    if target.is_float8:
        return float8.narrowed("_to_float8", cast(text, source, dtypes.f32), target)
    if target.is_low_precision and source != dtypes.f32:
        return f"{text}.to(tl.float32).to({TYPES[target]})"
    if source.is_low_precision and target != dtypes.f32:
        return cast(f"{text}.to(tl.float32)", dtypes.f32, target)
    if source.is_float and target.is_integral and target.bits < 32:
        return f"{text}.to(tl.int32).to({TYPES[target]})"
    return f"{text}.to({TYPES[target]})"


def literal(value: float | int | bool, dtype: DType) -> str:
    """A bare literal; negative ones in parentheses. Of -0.0 Triton makes 0."""
    if dtype.kind == "bool":
        return "1" if value else "0"
    if dtype.is_float8:
        return str(float8.code(value, dtype))
    if not dtype.is_float:
        return f"({int(value)})" if value < 0 else str(int(value))
    value = float(value)
    if math.isnan(value) or math.isinf(value):
        return f'float("{value}")'
    if value == 0 and math.copysign(1.0, value) < 0:
        return f"(tl.full((), 0.0, {TYPES[dtype]}) * -1.0)"
    return f"({value!r})" if math.copysign(1.0, value) < 0 else repr(value)


def typed(value: float | int | bool, dtype: DType) -> str:
    """A constant of exactly this dtype."""
    return f"tl.full((), {literal(value, dtype)}, {TYPES[dtype]})"
