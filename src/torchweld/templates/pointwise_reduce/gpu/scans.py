"""Prefixes of a tile along its columns, by monoid.

Most are made of the numbers themselves. `logaddexp` is made of pairs, of which two stretches make
one with a single exponential:

    top   the maximum
    rest  the sum of exp(x - top) without the maximum's own 1, so that log(1 + rest) keeps what is
          small beside it

The prefix is top + log(1 + rest). A number alone, and nothing at all (-inf), has a rest of zero.
A sort is Triton's bitonic one, of a tile that holds whole rows.
"""

from __future__ import annotations

from torchweld.codegen.triton import scalars
from torchweld.ir.nodes import Value
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.reduce import (
    OPERATION,
    carry_type,
    combined,
    identity,
    masked,
    narrowed,
    reduced,
)


def start(k: Kernel, value: Value) -> None:
    """The prefix of the blocks before the first."""
    instr = k.body[value]
    carry = carry_type(instr.dtype)
    shape = k.shape(k.along(k.axes[value]).replace("c", ""))
    text = identity(instr.monoid, carry)
    k.line(f"carry{value} = tl.full({shape}, {text}, {scalars.TYPES[carry]})")
    if _of_pairs(k, value):
        k.line(f"rest{value} = tl.full({shape}, 0.0, {scalars.TYPES[carry]})")


def within(k: Kernel, value: Value) -> str:
    """Prefixes within one block."""
    if _of_pairs(k, value):
        _scan_pairs(k, value)
        return _finished(k, value)
    if k.body[value].monoid == "sort":
        return narrowed(f"tl.sort({_tile(k, value)}, 1)", k.body[value].dtype)
    return narrowed(_scanned(k, value, _tile(k, value)), k.body[value].dtype)


def run(k: Kernel, value: Value) -> None:
    """Prefixes within a block, after those before it."""
    if _of_pairs(k, value):
        return _run_pairs(k, value)
    instr = k.body[value]
    k.line(f"x{value} = {_tile(k, value)}")
    text = combined(k, instr.monoid, instr.dtype, f"carry{value}", _scanned(k, value, f"x{value}"))
    k.assign(value, narrowed(f"({text})", instr.dtype))
    total = reduced(k, instr.monoid, f"x{value}", 1)
    k.line(f"carry{value} = {combined(k, instr.monoid, instr.dtype, f'carry{value}', total)}")
    return None


def _tile(k: Kernel, value: Value) -> str:
    return masked(k, k.body[value].monoid, k.body[value].arg, k.along(k.axes[value]))


def _scanned(k: Kernel, value: Value, tile: str) -> str:
    name = "_reduce_" + OPERATION[k.body[value].monoid]
    k.helper(f"{name}(")
    return f"tl.associative_scan({tile}, 1, {name}{_direction(k)})"


def _direction(k: Kernel) -> str:
    return ", reverse=True" if k.scans_from_end else ""


# pairs


def _of_pairs(k: Kernel, value: Value) -> bool:
    return k.body[value].monoid == "logaddexp"


def _scan_pairs(k: Kernel, value: Value) -> None:
    kind = scalars.TYPES[carry_type(k.body[value].dtype)]
    zeros = f"tl.zeros({k.shape(k.along(k.axes[value]))}, {kind})"
    scanned = f"tl.associative_scan(({_tile(k, value)}, {zeros}), 1, {_join(k)}{_direction(k)})"
    k.line(f"top{value}, more{value} = {scanned}")


def _run_pairs(k: Kernel, value: Value) -> None:
    """What the next block begins with is the last prefix of this one. Columns out of bounds add
    nothing, and come last."""
    before, here = f"carry{value}, rest{value}", f"top{value}, more{value}"
    _scan_pairs(k, value)
    k.line(f"{here} = {_join(k)}({before}, {here})")
    k.assign(value, _finished(k, value))
    end = 0 if k.scans_from_end else k.block_columns - 1
    last = f"tl.arange(0, {k.block_columns})[None, :] == {end}"
    for one, tile in zip(before.split(", "), here.split(", ")):
        k.line(f"{one} = tl.sum(tl.where({last}, {tile}, 0.0), axis=1, keep_dims=True)")


def _join(k: Kernel) -> str:
    name = "_log_added_fast" if k.fast else "_log_added"
    k.helper(f"{name}(")
    return name


def _finished(k: Kernel, value: Value) -> str:
    log = k.operation("log1p", "float", f"more{value}")
    return narrowed(f"(top{value} + {log})", k.body[value].dtype)
