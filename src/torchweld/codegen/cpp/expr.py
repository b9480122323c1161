"""Instructions as C++ expressions. Floats of 16 and 8 bits are unsigned integers, and widened where
computed with."""

from __future__ import annotations

import math

from torchweld.codegen import float8
from torchweld.codegen.scalars import CPP
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Cast, Const, Index, Instr, Op
from torchweld.ir.scalar import BITS
from torchweld.ir.size import Poly, Size

_TYPES = {
    "f64": "double", "f32": "float", "f16": "uint16_t", "bf16": "uint16_t", "i64": "int64_t",
    "i32": "int32_t", "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t", "b1": "bool",
    "f8e4m3": "uint8_t", "f8e5m2": "uint8_t",
}  # fmt: skip
_LOWEST = {"i64": "INT64_MIN", "i32": "INT32_MIN", "i16": "INT16_MIN", "i8": "INT8_MIN", "u8": "0"}
_HIGHEST = {
    "i64": "INT64_MAX", "i32": "INT32_MAX", "i16": "INT16_MAX", "i8": "INT8_MAX",
    "u8": "UINT8_MAX",
}  # fmt: skip


def ctype(dtype: DType) -> str:
    """The type of a value."""
    return _TYPES[dtype.name]


def memory_type(dtype: DType) -> str:
    """The type of an element in memory: a bool is a byte that is zero or not."""
    return "uint8_t" if dtype == dtypes.b1 else ctype(dtype)


def array_type(dtype: DType) -> str:
    """The type of an element of an array of our own. A bool is as wide as what it decides about:
    gcc 12 does not vectorise a loop that reads bools, and makes vectors of 8 bytes of one that
    reads 16 bytes beside 16 floats."""
    return "int32_t" if dtype == dtypes.b1 else ctype(dtype)


def from_memory(element: str, dtype: DType) -> str:
    """The value of an element of `memory_type` or `array_type`."""
    return f"({element} != 0)" if dtype == dtypes.b1 else element


def literal(value: float | int | bool, dtype: DType) -> str:
    if dtype.is_low_precision:
        return narrowed(literal(value, dtypes.f32), dtype)
    if dtype == dtypes.b1:
        return "true" if value else "false"
    if not dtype.is_float:
        return f"({ctype(dtype)}){_integer(int(value))}"
    suffix = "f" if dtype == dtypes.f32 else ""
    number = float(value)
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
    if suffix and abs(number) >= 2.0**128:  # overflows float, as torch's cast of the scalar does
        return f"(float){number!r}"
    return f"{'-' if math.copysign(1, number) < 0 else ''}{abs(number)!r}{suffix}"


def _integer(value: int) -> str:
    return "INT64_MIN" if value == -(2**63) else f"{value}ll" if abs(value) >= 2**31 else str(value)


def size_text(size: Size) -> str:
    """A size over the kernel's int64 locals: `n_NAME` for each symbol."""
    if not isinstance(size, Poly):
        return _integer(size)
    return (
        "(" + " + ".join("*".join((f"{c}ll", *(f"n_{s}" for s in m))) for m, c in size.terms) + ")"
    )


def affine_text(index: Affine, names: dict[str, str]) -> str:
    """`names`: the C++ variable of each axis."""
    parts = []
    for axis, coefficient in index.terms:
        name = names[axis]
        parts.append(name if coefficient == 1 else f"{size_text(coefficient)}*{name}")
    if index.const != 0 or not parts:
        parts.append(size_text(index.const))
    return " + ".join(parts)


def widened(text: str, dtype: DType) -> str:
    if dtype.is_float8:
        return float8.widened("tw_from_f8", text, dtype)
    return f"tw_from_{dtype}({text})" if dtype.is_low_precision else text


def narrowed(text: str, dtype: DType) -> str:
    if dtype.is_float8:
        return float8.narrowed("tw_to_f8", text, dtype)
    return f"tw_to_{dtype}({text})" if dtype.is_low_precision else text


def cast(text: str, source: DType, target: DType) -> str:
    """Conversion by value, as torch's `to`: NaN and out-of-range floats are the platform's."""
    if source == target:
        return text
    value = widened(text, source)
    if source == dtypes.b1:  # gcc does not vectorise a conversion of bool
        return f"({text} ? {literal(1, target)} : {literal(0, target)})"
    if target == dtypes.b1:
        return f"({value} != 0)"
    if target.is_low_precision:
        return narrowed(f"(float)({value})", target)
    if source.is_float and target.is_integral and target.bits < 32:
        return f"({ctype(target)})(int32_t)({value})"
    return f"({ctype(target)})({value})"


def operation(op: Op, args: list[str], kinds: list[DType], saturating: bool = False) -> str:
    """`saturating`: an exp whose argument is known not to be positive."""
    if op.name == "where" and op.dtype.is_low_precision and op.dtype.bits == 16:
        return f"tw_choose16({', '.join(args)})"
    if op.name == "where" or (op.name in BITS and not op.dtype.is_integral):
        return CPP[op.name].format(*args)
    values = args if op.name in BITS else [widened(a, k) for a, k in zip(args, kinds)]
    spelling = "tw_exp_nonpositive({0})" if saturating else CPP[op.name]
    text = spelling.format(*values)
    if op.dtype.is_integral:
        return f"({ctype(op.dtype)})({text})"  # C++ promotes short integers
    return narrowed(text, op.dtype)


def pure(
    instr: Instr,
    args: list[str],
    kinds: list[DType],
    axis_names: dict[str, str],
    saturating: bool = False,
) -> str:
    """A Const, Index, Op or Cast."""
    if isinstance(instr, Const):
        return literal(instr.value, instr.dtype)
    if isinstance(instr, Index):
        return affine_text(instr.map, axis_names)
    if isinstance(instr, Cast):
        return cast(args[0], kinds[0], instr.dtype)
    return operation(instr, args, kinds, saturating)


def identity(monoid: str, dtype: DType) -> str:
    """What a reduction of nothing gives."""
    if monoid in ("sum", "any"):
        return "0"
    if monoid in ("prod", "all"):
        return "1"
    if dtype.is_float:
        return "TW_INF" if monoid == "min" else "-TW_INF"
    if dtype == dtypes.b1:
        return "0" if monoid == "max" else "1"
    return (_LOWEST if monoid == "max" else _HIGHEST)[dtype.name]


_MERGE = {
    "sum": "{0} + {1}", "prod": "{0} * {1}", "any": "{0} | {1}", "all": "{0} & {1}",
    "max": "tw_maximum({0}, {1})", "min": "tw_minimum({0}, {1})",
}  # fmt: skip


def merge(monoid: str, one: str, other: str) -> str:
    return _MERGE[monoid].format(one, other)


def simd_operator(monoid: str) -> str:
    """Of an OpenMP reduction clause."""
    return {"sum": "+", "prod": "*", "any": "|", "all": "&"}.get(monoid, monoid)


def nan(dtype: DType) -> str:
    return literal(math.nan, dtypes.compute(dtype))


def accumulator_type(monoid: str, dtype: DType) -> tuple[str, str]:
    """(within a block of elements, over blocks): long float sums go over to double, so that their
    error does not grow with the length."""
    if dtype == dtypes.b1:
        return "int32_t", "int32_t"
    if dtype.is_low_precision:
        dtype = dtypes.f32
    wide = dtype == dtypes.f32 and monoid in ("sum", "prod")
    return ctype(dtype), "double" if wide else ctype(dtype)
