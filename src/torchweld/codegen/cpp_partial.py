"""Partial results of reductions within a block of elements: declared, advanced in the innermost
loop, and merged into the running total of the row."""

from __future__ import annotations

from torchweld.codegen import cpp_expr as x
from torchweld.codegen.cpp_kernel import Kernel
from torchweld.codegen.cpp_values import Texts, widened
from torchweld.codegen.emitter import Emitter
from torchweld.ir.nodes import Value


def declare_partial(k: Kernel, e: Emitter, value: Value) -> None:
    kind, start = k.accumulator(value)[0], k.identity(value)
    if k.row_lane:
        e.line(f"alignas(64) {kind} a{value}[{k.lane_block}];")
        e.line(f"for (int64_t l = 0; l < {k.lane_block}; ++l) a{value}[l] = {start};")
        return
    e.line(f"{kind} a{value} = {start};")
    if _flags_nan(k, value):
        e.line(f"int32_t nan{value} = 0;")


def advance_partial(k: Kernel, e: Emitter, value: Value, texts: Texts, mask: str | None) -> None:
    """One element joins. `mask`: whether it has not joined before."""
    arg = widened(k, k.body[value].args[0], texts)
    if k.row_lane:
        partial = f"a{value}[{k.lane_position}]"
        e.line(f"{partial} = {k.merged(value, partial, arg)};")
        return
    if mask and not _flags_nan(k, value):
        arg = f"({mask} ? {arg} : {k.identity(value)})"
    if not _flags_nan(k, value):
        e.line(f"a{value} = {k.merged(value, f'a{value}', arg)};")
        return
    better = ">" if k.body[value].monoid == "max" else "<"
    e.line(f"a{value} = {arg} {better} a{value} ? {arg} : a{value};")
    e.line(f"nan{value} |= {arg} != {arg};")


def merge_partial(k: Kernel, e: Emitter, value: Value) -> None:
    """The partial result joins the total of the row."""
    wide = k.accumulator(value)[1]
    if k.row_lane:
        merged = k.merged(value, f"A{value}[l]", f"({wide})a{value}[l]")
        e.line(f"for (int64_t l = 0; l < {k.lane_block}; ++l) A{value}[l] = {merged};")
        return
    partial = f"({wide})a{value}"
    if _flags_nan(k, value):
        partial = f"nan{value} ? {x.nan(k.body[value].dtype)} : {partial}"
    e.line(f"A{value} = {k.merged(value, f'A{value}', partial)};")


def reduction_clause(k: Kernel, value: Value) -> str:
    """For `#pragma omp simd`."""
    flag = f" reduction(| : nan{value})" if _flags_nan(k, value) else ""
    return f" reduction({x.simd_operator(k.body[value].monoid)} : a{value}){flag}"


def _flags_nan(k: Kernel, value: Value) -> bool:
    """A float maximum along the lane leaves NaN to a flag: an operator that carries NaN would take
    a custom OpenMP reduction, which gcc makes twice as slow."""
    instr = k.body[value]
    return not k.row_lane and instr.monoid in ("max", "min") and instr.dtype.is_float
