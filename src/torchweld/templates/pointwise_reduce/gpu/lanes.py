"""Tuple reductions over blocks of columns: every lane of a block keeps a result of its own, so that
no lane waits for another before the loop ends; then lanes are merged.

    argmax     (value, position), the first of equal ones, NaN wins
    welford    (mean, M2, count), lanes merged by Chan's formula
    logsumexp  (max, sum of exp(x - max)), with one exponential for each number
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchweld.codegen.triton import scalars
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.access import linear
from torchweld.ir.nodes import Index, Value
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.reduce import (
    carry_type,
    identity,
    masked,
    nowhere,
    reduced,
)
from torchweld.templates.pointwise_reduce.gpu.walks import Walk, first_column


@dataclass(frozen=True, slots=True)
class Lanes:
    """`start`: names of variables that hold nothing yet. `enter`: before each loop. `run`: takes in
    a block. `end`: the results of all lanes, by the same names."""

    start: Callable[[Kernel, Value], list[str]]
    run: Callable[[Kernel, Value, list[str]], None]
    end: Callable[[Kernel, Value, list[str]], list[str]]
    enter: Callable[[Kernel, Walk, list[str]], None] = lambda k, walk, running: None


def arguments(k: Kernel, value: Value) -> tuple[Value, ...]:
    """What has to be computed in each block for the reduction `value`."""
    args = k.operands(value)
    return args[:1] if len(args) > 1 and _column_factor(k, value) is not None else args


def _along(k: Kernel, value: Value) -> str:
    return k.along(k.axes[value]).replace("c", "") + "c"


def _full(k: Kernel, name: str, value: Value, text: str, kind: str) -> str:
    k.line(f"{name} = tl.full({k.shape(_along(k, value))}, {text}, {kind})")
    return name


def _kind(k: Kernel, value: Value) -> str:
    return scalars.TYPES[carry_type(k.body[value].dtype)]


# argmax and argmin


def _column_factor(k: Kernel, value: Value):
    """f if a position is f times the column plus what is the same for all columns: the column is
    kept then, in 32 bits where columns are. None if it is anything else, or may fall."""
    at = k.body[k.body[value].args[1]]
    factor = linear(k.accesses, at.map, k.schedule.columns) if isinstance(at, Index) else None
    return factor if isinstance(factor, int) and factor > 0 else None


def _position_type(k: Kernel, value: Value) -> DType:
    """Of what lanes keep."""
    if _column_factor(k, value) is None:
        return k.body[k.body[value].args[1]].dtype
    return dtypes.i64 if k.index_type == "tl.int64" else dtypes.i32


def _start_position(k: Kernel, value: Value) -> list[str]:
    instr, kind = k.body[value], _position_type(k, value)
    nothing = identity(instr.monoid, carry_type(instr.dtype))
    best = _full(k, f"acc{value}_0", value, nothing, _kind(k, value))
    return [best, _full(k, f"acc{value}_1", value, nowhere(kind), scalars.TYPES[kind])]


def _run_position(k: Kernel, value: Value, running: list[str]) -> None:
    instr, (best, at) = k.body[value], running
    k.line(f"x = {masked(k, instr.monoid, instr.args[0], _along(k, value))}")
    if _column_factor(k, value) is None or (k.row_start is not None and k.mask("c")):
        return _merge_position(k, value, running)
    worse = f"(x {'<=' if instr.monoid == 'argmax' else '>='} {best})"
    k.line(f"better = ({worse} == 0) & ({best} == {best})")  # NaN, too, but the first
    k.line(f"{best} = tl.where(better, x, {best})")
    k.line(f"{at} = tl.where(better, {k.column}, {at})")


def _merge_position(k: Kernel, value: Value, running: list[str]) -> None:
    """Where lanes do not meet positions in their order."""
    instr, kind = k.body[value], _position_type(k, value)
    here = k.column if _column_factor(k, value) is not None else k.value(instr.args[1])
    here = f"tl.broadcast_to({here}, {k.shape(_along(k, value))})"
    if mask := k.mask("c"):
        here = f"tl.where({mask}, {here}, {nowhere(kind)})"
    names = ", ".join(running)
    k.line(k.helper(f"{names} = _{instr.monoid}({names}, x, {here})"))


def _end_position(k: Kernel, value: Value, running: list[str]) -> list[str]:
    instr, factor = k.body[value], _column_factor(k, value)
    names = ", ".join(running)
    merge = f"_{instr.monoid}"
    k.helper(f"{merge}(")
    k.line(f"{names} = tl.reduce(({names}), 1, {merge}, keep_dims=True)")
    if factor is not None:
        at, rest = running[1], k.offset(k.without_columns(k.body[instr.args[1]].map))
        # Nothing was better than the least of all numbers: the first is as good as any.
        kept, wanted = _position_type(k, value), k.body[instr.args[1]].dtype
        k.line(f"{at} = tl.where({at} == {nowhere(kept)}, {first_column(k)}, {at})")
        k.line(f"{at} = {scalars.cast(at, kept, wanted)} * {factor} + {rest}")
    return running


# welford


def _start_welford(k: Kernel, value: Value) -> list[str]:
    kind = _kind(k, value)
    names = [_full(k, f"acc{value}_{item}", value, "0.0", kind) for item in (0, 1)]
    k.line(f"acc{value}_2 = tl.full((), 0.0, {kind})")
    k.line(f"near{value} = tl.zeros({k.shape(_along(k, value).replace('c', ''))}, {kind})")
    k.line(f"blocks{value} = 0")
    return [*names, f"acc{value}_2"]


def _enter_welford(k: Kernel, walk: Walk, running: list[str]) -> None:
    """Lanes have counts of their own from the first block on that has a mask."""
    if walk.covered != k.columns:
        k.line(f"{running[2]} = tl.broadcast_to({running[2]}, [1, {k.block_columns}])")


def _run_welford(k: Kernel, value: Value, running: list[str]) -> None:
    """Means are told from that of the first block if it exceeds the spread there: lanes with a
    large mean and a small spread would round more of it away, each time, than there is spread. Of
    that mean 8 bits are taken. Bits of it below those of x would be rounded away from every x
    alike, and bias the mean."""
    (mean, squares, count), mask, near = running, k.mask("c"), f"near{value}"
    k.line(f"x = {masked(k, 'sum', k.body[value].args[0], _along(k, value))}")
    with k.indented(f"if blocks{value} == 0:"):
        k.line(f"{near} = tl.sum(x, axis=1, keep_dims=True) / {k.block_columns}")
        k.line(f"spread = tl.sum(tl.abs(x - {near}), axis=1, keep_dims=True) / {k.block_columns}")
        k.line(f"{near} = {near}.to(tl.bfloat16).to({_kind(k, value)})")
        apart = f'(tl.abs({near}) > spread) & (tl.abs({near}) < float("inf"))'
        k.line(f"{near} = tl.where({apart}, {near}, 0.0)")
    k.line(f"blocks{value} += 1")
    k.line(f"x = x - {near}")
    k.line(f"{count} += {f'{mask}.to({_kind(k, value)})' if mask else '1.0'}")
    k.line(f"apart = {f'tl.where({mask}, x - {mean}, 0.0)' if mask else f'x - {mean}'}")
    share = k.operation("reciprocal", "float", f"tl.maximum({count}, 1.0)" if mask else count)
    k.line(f"{mean} += apart * {share}")
    k.line(f"{squares} += apart * (x - {mean})")


def _end_welford(k: Kernel, value: Value, running: list[str]) -> list[str]:
    k.helper("_welford(")
    names, shape = ", ".join(running), k.shape(_along(k, value))
    k.line(f"{running[2]} = tl.broadcast_to({running[2]}, {shape})")
    k.line(f"{names} = tl.reduce(({names}), 1, _welford, keep_dims=True)")
    k.line(f"{running[0]} += near{value}")
    return running


# logsumexp, and a maximum with the sum of exponentials


def _start_exp(k: Kernel, value: Value) -> list[str]:
    """The maximum begins at the lowest finite number, from which every other can be subtracted."""
    numbers = (_lowest(k, value), "0.0")
    return [_full(k, f"acc{value}_{n}", value, x, _kind(k, value)) for n, x in enumerate(numbers)]


def _lowest(k: Kernel, value: Value) -> str:
    return repr(-torch.finfo(dtypes.to_torch(carry_type(k.body[value].dtype))).max)


def _run_exp(k: Kernel, value: Value, running: list[str]) -> None:
    """What is less is scaled to what is more, whether that is the sum so far or the new number."""
    top, total = running
    k.line(f"x = {masked(k, 'max', k.body[value].args[0], _along(k, value))}")
    k.line(f"more = x - {top}")
    k.line(f"scale = {k.operation('exp', 'float', '(-tl.abs(more))')}")
    k.line(f"{total} = tl.where(more > 0, {total} * scale + 1.0, {total} + scale)")
    k.line(f"{top} = {k.operation('maximum', 'float', top, 'x')}")


def _end_exp(k: Kernel, value: Value, running: list[str]) -> list[str]:
    top, total = running
    found = reduced(k, "max", top, 1)
    k.line(f"top = {k.operation('maximum', 'float', found, _lowest(k, value))}")
    scale = k.operation("exp", "float", f"({top} - top)")
    k.line(f"{total} = tl.sum({total} * {scale}, axis=1, keep_dims=True)")
    k.line(f'{top} = tl.where({total} == 0.0, float("-inf"), top)')
    return running


EXP = Lanes(_start_exp, _run_exp, _end_exp)
_POSITION = Lanes(_start_position, _run_position, _end_position)
_WELFORD = Lanes(_start_welford, _run_welford, _end_welford, _enter_welford)

TUPLES = {
    "argmax": _POSITION,
    "argmin": _POSITION,
    "welford": _WELFORD,
    "logsumexp": EXP,
}
