"""Reductions and scans of a tile, by monoid: of one block, merged into a running result, and
finished.

Single-result monoids run lane by lane: the accumulator is a tile, reduced once after the loop.
Tuple monoids are reduced block by block and merged:

    argmax     (value, position), the first of equal ones, NaN wins
    welford    (mean, M2, count): exact within a block, Chan's formula between blocks
    logsumexp  (max, sum of exp(x - max)): within a block after its maximum; in a loop lane by lane
"""

from __future__ import annotations

import torch

from torchweld.codegen import triton_scalars as scalars
from torchweld.codegen.triton_emit import Kernel
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.nodes import Reduce, Value

_OPERATION = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "maximum",
    "all": "minimum",
}
TUPLES = ("argmax", "argmin", "welford", "logsumexp")


def carry_type(dtype: DType) -> DType:
    """What a running result is kept in: small integers and bools in i32, 16-bit floats in f32."""
    if dtype.is_float:
        return dtypes.compute(dtype)
    return dtype if dtype.bits >= 32 else dtypes.i32


def identity(monoid: str, dtype: DType) -> str:
    kind = _OPERATION.get(monoid, "maximum" if monoid != "argmin" else "minimum")
    if kind in ("add", "mul"):
        return scalars.literal(0 if kind == "add" else 1, dtype)
    if monoid in ("any", "all"):
        return "0" if monoid == "any" else "1"
    sign = -1 if kind == "maximum" else 1
    if dtype.is_float:
        return scalars.literal(sign * float("inf"), dtype)
    limit = 2 ** (dtype.bits - 1)
    return str(-limit if sign < 0 else limit - 1)


def masked(k: Kernel, monoid: str, value: Value, along: str, over: str = "c") -> str:
    """The argument as a tile over `along`, the identity where out of bounds in the dimension `over`
    which is reduced; what is out of bounds in the other is never stored."""
    carry = carry_type(k.body[value].dtype)
    text = k.value(value)
    if k.body[value].dtype != carry:
        text = scalars.cast(text, k.body[value].dtype, carry)
    if mask := k.mask(over):
        text = f"tl.where({mask}, {text}, {identity(monoid, carry)})"
    if set(k.along(k.axes[value])) != set(along):
        text = f"tl.broadcast_to({text}, {k.shape(along)})"
    return text


def combined(k: Kernel, monoid: str, dtype: DType, a: str, b: str) -> str:
    return k.operation(_OPERATION[monoid], carry_type(dtype).kind, a, b)


def reduced(k: Kernel, monoid: str, tile: str, dimension: int) -> str:
    """One dimension of a tile reduced, kept with extent one."""
    if monoid == "sum":
        return f"tl.sum({tile}, axis={dimension}, keep_dims=True)"
    name = "_reduce_" + _OPERATION[monoid]
    k.helper(f"{name}(")
    return f"tl.reduce({tile}, {dimension}, {name}, keep_dims=True)"


def narrowed(text: str, dtype: DType) -> str:
    """A running result in the dtype that the IR gives it."""
    carry = carry_type(dtype)
    return text if carry == dtype else scalars.cast(f"({text})", carry, dtype)


def block(k: Kernel, value: Value) -> list[str]:
    """Results, over the current block of columns, of the Reduce `value`; names of variables."""
    instr = k.body[value]
    tile_along = "".join(sorted(set(k.along(k.axes[instr.args[0]])) | {"c"}, reverse=True))
    return _BLOCKS.get(instr.monoid, _simple_block)(k, value, instr, tile_along)


def merge(k: Kernel, monoid: str, old: list[str], new: list[str]) -> None:
    """old <- old merged with new, for a tuple monoid."""
    _MERGES[monoid](k, old, new)


def start(k: Kernel, value: Value, shape: str) -> list[str]:
    """Variables that hold a tuple monoid's identity."""
    monoid = k.body[value].monoid
    dtype = carry_type(k.body[value].dtype)
    starts = {
        "welford": [("0.0", dtype)] * 3,
    }.get(monoid, [(identity(monoid, dtype), dtype), (str(2**63 - 1), dtypes.i64)])
    names = [f"acc{value}_{item}" for item in range(len(starts))]
    for name, (text, kind) in zip(names, starts):
        k.line(f"{name} = tl.full({shape}, {text}, {scalars.TYPES[kind]})")
    return names


def start_exp(k: Kernel, value: Value, shape: str) -> list[str]:
    """Variables that hold, lane by lane, (max, sum of exponentials) of nothing. The maximum begins
    at the lowest finite number, from which every other can be subtracted."""
    dtype = carry_type(k.body[value].dtype)
    lowest = -torch.finfo(dtypes.to_torch(dtype)).max
    names = [f"acc{value}_0", f"acc{value}_1"]
    for name, number in zip(names, (lowest, 0.0)):
        k.line(f"{name} = tl.full({shape}, {number!r}, {scalars.TYPES[dtype]})")
    return names


def run_exp(k: Kernel, value: Value, running: list[str], along: str) -> None:
    """Takes in a block with one exponential for each lane: what is less is scaled to what is more,
    whether that is the sum so far or the new number."""
    top, total = running
    k.line(f"x = {masked(k, 'max', k.body[value].args[0], along)}")
    k.line(f"more = x - {top}")
    k.line(f"scale = {k.operation('exp', 'float', '(-tl.abs(more))')}")
    k.line(f"{total} = tl.where(more > 0, {total} * scale + 1.0, {total} + scale)")
    k.line(f"{top} = {k.operation('maximum', 'float', top, 'x')}")


def end_exp(k: Kernel, value: Value, running: list[str]) -> list[str]:
    """(max, sum) of all lanes."""
    top, total = running
    k.line(f"top = {reduced(k, 'max', top, 1)}")
    scale = k.operation("exp", "float", f"({top} - top)")
    k.line(f"{total} = tl.sum({total} * {scale}, axis=1, keep_dims=True)")
    k.line(f'{top} = tl.where({total} == 0.0, float("-inf"), top)')
    return running


def start_scan(k: Kernel, value: Value) -> None:
    """The prefix of the blocks before the first."""
    instr = k.body[value]
    carry = carry_type(instr.dtype)
    shape = k.shape(k.along(k.axes[value]).replace("c", ""))
    text = identity(instr.monoid, carry)
    k.line(f"carry{value} = tl.full({shape}, {text}, {scalars.TYPES[carry]})")


def scan(k: Kernel, value: Value) -> str:
    """Prefixes within one block."""
    instr = k.body[value]
    return narrowed(_scanned(k, value, _scan_tile(k, value)), instr.dtype)


def run_scan(k: Kernel, value: Value) -> None:
    """Prefixes within a block, after those before it."""
    instr = k.body[value]
    k.line(f"x{value} = {_scan_tile(k, value)}")
    text = combined(k, instr.monoid, instr.dtype, f"carry{value}", _scanned(k, value, f"x{value}"))
    k.assign(value, narrowed(f"({text})", instr.dtype))
    total = reduced(k, instr.monoid, f"x{value}", 1)
    k.line(f"carry{value} = {combined(k, instr.monoid, instr.dtype, f'carry{value}', total)}")


def _scan_tile(k: Kernel, value: Value) -> str:
    return masked(k, k.body[value].monoid, k.body[value].arg, k.along(k.axes[value]))


def _scanned(k: Kernel, value: Value, tile: str) -> str:
    name = "_reduce_" + _OPERATION[k.body[value].monoid]
    k.helper(f"{name}(")
    return f"tl.associative_scan({tile}, 1, {name})"


def know(k: Kernel, value: Value, names: list[str]) -> None:
    """Makes the results of a Reduce available to `value` and `Pick`."""
    instr = k.body[value]
    k.partial_results[value] = names
    k.assign(value, narrowed(names[0], instr.dtype))
    for item, name in enumerate(names[:2]):
        k.known[(value, item)] = k.known[value] if item == 0 else name


def _simple_block(k: Kernel, value: Value, instr: Reduce, along: str) -> list[str]:
    tile = masked(k, instr.monoid, instr.args[0], along)
    return [k.assign((value, 0), reduced(k, instr.monoid, tile, 1))]


def _position_block(k: Kernel, value: Value, instr: Reduce, along: str) -> list[str]:
    k.helper(f"_{instr.monoid}(")
    best = masked(k, instr.monoid, instr.args[0], along)
    at = k.value(instr.args[1])
    if mask := k.mask("c"):
        at = f"tl.where({mask}, {at}, {2**63 - 1})"
    if set(along) != set(k.along(k.axes[instr.args[1]])):
        at = f"tl.broadcast_to({at}, {k.shape(along)})"
    names = [f"v{value}_0", f"v{value}_1"]
    k.line(f"{', '.join(names)} = tl.reduce(({best}, {at}), 1, _{instr.monoid}, keep_dims=True)")
    return names


def _welford_block(k: Kernel, value: Value, instr: Reduce, along: str) -> list[str]:
    dtype = carry_type(instr.dtype)
    shape = k.shape(along.replace("c", ""))
    count = k.assign((value, 2), _count(k, shape, scalars.TYPES[dtype]))
    tile = masked(k, "sum", instr.args[0], along)
    total = reduced(k, "sum", tile, 1)
    # A block wholly out of bounds has mean 0, not 0/0.
    divisor = f"tl.maximum({count}, 1.0)" if k.schedule.form == "looped" and k.mask("c") else count
    mean = k.assign((value, 0), k.operation("div", "float", total, divisor))
    k.line(f"d{value} = {k.value(instr.args[0])} - {mean}")
    squares = f"d{value} * d{value}"
    if mask := k.mask("c"):
        squares = f"tl.where({mask}, {squares}, 0.0)"
    if set(k.along(k.axes[instr.args[0]])) != set(along):
        squares = f"tl.broadcast_to({squares}, {k.shape(along)})"
    return [mean, k.assign((value, 1), reduced(k, "sum", squares, 1)), count]


def _count(k: Kernel, shape: str, kind: str) -> str:
    """Points of the current block that are in bounds."""
    if k.schedule.form == "persistent":
        return f"tl.full({shape}, {k.columns}, {kind})"
    if k.mask("c"):
        return f"tl.broadcast_to(tl.sum(cm.to({kind}), axis=1, keep_dims=True), {shape})"
    return f"tl.full({shape}, {k.block_columns}, {kind})"


def _logsumexp_block(k: Kernel, value: Value, instr: Reduce, along: str) -> list[str]:
    tile = masked(k, "max", instr.args[0], along)
    top = k.assign((value, 0), reduced(k, "max", tile, 1))
    shift = f'tl.where({top} == float("-inf"), 0.0, {top})'  # nothing where all are -inf
    exp = k.operation("exp", "float", f"({tile} - {shift})")
    return [top, k.assign((value, 1), f"tl.sum({exp}, axis=1, keep_dims=True)")]


def _merge_position(monoid: str):
    def merge_position(k: Kernel, old: list[str], new: list[str]) -> None:
        k.line(f"{old[0]}, {old[1]} = _{monoid}({old[0]}, {old[1]}, {new[0]}, {new[1]})")

    return merge_position


def _merge_welford(k: Kernel, old: list[str], new: list[str]) -> None:
    (mean, m2, count), (mean_b, m2_b, count_b) = old, new
    k.line(f"total = {count} + {count_b}")
    k.line(f"apart = {mean_b} - {mean}")
    k.line(f"share_b = {k.operation('div', 'float', count_b, 'tl.maximum(total, 1.0)')}")
    k.line(f"{m2} += {m2_b} + apart * apart * {count} * share_b")
    k.line(f"{mean} += apart * share_b")
    k.line(f"{count} = total")


_BLOCKS = {
    "argmax": _position_block,
    "argmin": _position_block,
    "welford": _welford_block,
    "logsumexp": _logsumexp_block,
}
_MERGES = {
    "argmax": _merge_position("argmax"),
    "argmin": _merge_position("argmin"),
    "welford": _merge_welford,
}
