"""How each scalar operation is written, in C++ and in Triton: one row per operation of ir/scalar.py.

`{0}`, `{1}`, `{2}` are the arguments. C++ calls `tw_*` of fastmath.h, overloaded by type. `None`
says that the printer must treat the row itself, for the reason given.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spelling:
    name: str
    cpp: str | None
    triton: str | None
    reason: str = ""  # why an entry is None


def _row(name: str, cpp: str | None, triton: str | None, reason: str = "") -> Spelling:
    return Spelling(name, cpp, triton, reason)


def _lib(name: str, arity: int = 1) -> Spelling:
    """A function of fastmath.h and of libdevice under the same name."""
    args = ", ".join(f"{{{k}}}" for k in range(arity))
    return _row(name, f"tw_{name}({args})", f"libdevice.{name}({args})")


_BY_TYPE = "float and integer arguments are written differently"

_ROWS = (
    _row("neg", "-{0}", "-{0}"),
    _row("abs", "tw_abs({0})", "tl.abs({0})"),
    _row("sign", "tw_sign({0})", None, "NaN stays NaN for floats"),
    _row("ceil", "tw_ceil({0})", "tl.ceil({0})"),
    _row("floor", "tw_floor({0})", "tl.floor({0})"),
    _row("round", "tw_round({0})", "libdevice.rint({0})"),
    _row("trunc", "tw_trunc({0})", "libdevice.trunc({0})"),
    _row("sqrt", "tw_sqrt({0})", "tl.sqrt_rn({0})"),
    _row("rsqrt", "tw_rsqrt({0})", "libdevice.rsqrt({0})"),
    _row("reciprocal", "1 / {0}", "1.0 / {0}"),
    _row("exp", "tw_exp({0})", "tl.exp({0})"),
    _row("exp2", "tw_exp2({0})", "tl.exp2({0})"),
    _lib("expm1"),
    _row("log", "tw_log({0})", "tl.log({0})"),
    _row("log2", "tw_log2({0})", "tl.log2({0})"),
    _lib("log10"),
    _lib("log1p"),
    _row("sin", "tw_sin({0})", "tl.sin({0})"),
    _row("cos", "tw_cos({0})", "tl.cos({0})"),
    _lib("tan"),
    _lib("asin"),
    _lib("acos"),
    _lib("atan"),
    _lib("sinh"),
    _lib("cosh"),
    _lib("tanh"),
    _lib("asinh"),
    _lib("acosh"),
    _lib("atanh"),
    _row("erf", "tw_erf({0})", "tl.erf({0})"),
    _row("sigmoid", "tw_sigmoid({0})", "tl.sigmoid({0})"),
    _row("isnan", "{0} != {0}", "{0} != {0}"),
    _row("isinf", "tw_isinf({0})", "tl.abs({0}) == float('inf')"),
    _row("logical_not", "!{0}", "{0} == 0"),
    _row("bit_not", "~{0}", "~{0}"),
    _row("add", "{0} + {1}", "{0} + {1}"),
    _row("sub", "{0} - {1}", "{0} - {1}"),
    _row("mul", "{0} * {1}", "{0} * {1}"),
    _row("div", "{0} / {1}", "{0} / {1}"),
    _row("floor_div", "tw_floor_div({0}, {1})", None, _BY_TYPE),
    _row("trunc_div", "tw_trunc_div({0}, {1})", None, _BY_TYPE),
    _row("remainder", "tw_remainder({0}, {1})", None, _BY_TYPE),
    _row("fmod", "tw_fmod({0}, {1})", None, _BY_TYPE),
    _row("pow", "tw_pow({0}, {1})", None, _BY_TYPE),
    _lib("atan2", 2),
    _lib("copysign", 2),
    _row("minimum", "tw_minimum({0}, {1})", None, _BY_TYPE),
    _row("maximum", "tw_maximum({0}, {1})", None, _BY_TYPE),
    _row("fmin", "tw_fmin({0}, {1})", None, _BY_TYPE),
    _row("fmax", "tw_fmax({0}, {1})", None, _BY_TYPE),
    _row("bit_and", "{0} & {1}", "{0} & {1}"),
    _row("bit_or", "{0} | {1}", "{0} | {1}"),
    _row("bit_xor", "{0} ^ {1}", "{0} ^ {1}"),
    _row("shl", "tw_shl({0}, {1})", "{0} << {1}"),
    _row("shr", "tw_shr({0}, {1})", "{0} >> {1}"),
    _row("eq", "{0} == {1}", "{0} == {1}"),
    _row("ne", "{0} != {1}", "{0} != {1}"),
    _row("lt", "{0} < {1}", "{0} < {1}"),
    _row("le", "{0} <= {1}", "{0} <= {1}"),
    _row("gt", "{0} > {1}", "{0} > {1}"),
    _row("ge", "{0} >= {1}", "{0} >= {1}"),
    _row("where", "{0} ? {1} : {2}", "tl.where({0}, {1}, {2})"),
    _row("philox", "tw_philox({0}, {1})", None, "a helper function of the generated module"),
)

TABLE = {row.name: row for row in _ROWS}
