"""Partial results of reductions within a block of elements: declared, advanced in the innermost
loop, and merged into the running total of the row."""

from __future__ import annotations

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.ir.nodes import Value
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.values import Texts, widened

_LANED = ("float", "double", "int64_t")  # accumulators


def declare_partial(k: Kernel, e: Emitter, value: Value) -> None:
    kind, start = k.accumulator(value)[0], k.identity(value)
    if k.row_lane:
        e.line(f"alignas(64) {kind} a{value}[{k.lane_block}];")
        e.line(f"for (int64_t l = 0; l < {k.lane_block}; ++l) a{value}[l] = {start};")
        return
    e.line(f"{kind} a{value} = {start};")
    if _flags_nan(k, value):
        e.line(f"int32_t nan{value} = 0;")
    if has_lanes(k, value):
        e.line(f"tw_lanes<{kind}, {k.lanes}> b{value} = tw_all<{kind}, {k.lanes}>({start});")


def has_lanes(k: Kernel, value: Value) -> bool:
    """Whether whole vectors of the lane are reduced abreast, in `b`."""
    instr, extent = k.body[value], k.comp.extent(k.schedule.nest[-1])
    short = isinstance(extent, int) and extent < k.lanes and not k.has_short_rows
    known = instr.monoid in ("sum", "prod", "max", "min") and k.accumulator(value)[0] in _LANED
    return known and not k.row_lane and not short


def declare_lane_values(k: Kernel, e: Emitter, values: list[Value]) -> None:
    """What each lane of one vector brings."""
    for value in values:
        e.line(f"alignas(64) {k.accumulator(value)[0]} t{value}[{k.lanes}];")


def set_lane_value(k: Kernel, e: Emitter, value: Value, texts: Texts, mask: str | None) -> None:
    arg = widened(k, k.body[value].args[0], texts)
    e.line(f"t{value}[l] = {k.joining(mask, value, arg)};")


def advance_lanes(k: Kernel, e: Emitter, value: Value) -> None:
    """One vector joins."""
    e.line(f"tw_join_{k.body[value].monoid}(b{value}, t{value});")


def advance_partial(k: Kernel, e: Emitter, value: Value, texts: Texts, mask: str | None) -> None:
    """One element joins. `mask`: whether it has not joined before."""
    arg = widened(k, k.body[value].args[0], texts)
    if k.row_lane:
        partial = f"a{value}[{k.lane_position}]"
        e.line(f"{partial} = {k.merged(value, partial, arg)};")
        return
    if not _flags_nan(k, value):
        e.line(f"a{value} = {k.merged(value, f'a{value}', k.joining(mask, value, arg))};")
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
    if has_lanes(k, value):
        lanes = f"({wide})tw_across_{k.body[value].monoid}(b{value})"
        e.line(f"A{value} = {k.merged(value, f'A{value}', lanes)};")


def reduction_clause(k: Kernel, value: Value) -> str:
    """For `#pragma omp simd`."""
    flag = f" reduction(| : nan{value})" if _flags_nan(k, value) else ""
    return f" reduction({x.simd_operator(k.body[value].monoid)} : a{value}){flag}"


def _flags_nan(k: Kernel, value: Value) -> bool:
    """A float maximum along the lane leaves NaN to a flag: an operator that carries NaN would take
    a custom OpenMP reduction, which gcc makes twice as slow."""
    instr = k.body[value]
    return not k.row_lane and instr.monoid in ("max", "min") and instr.dtype.is_float
