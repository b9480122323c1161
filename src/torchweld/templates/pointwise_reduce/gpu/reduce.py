"""Reductions of a tile, by monoid.

Single-result monoids run lane by lane in a loop: the accumulator is a tile, reduced once after it.
Tuple monoids (of one block here, over several in lanes.py):

    argmax     (value, position), the first of equal ones, NaN wins
    welford    (mean, M2, count): the mean first, then squares of what is left
    logsumexp  (max, sum of exp(x - max)): after the maximum
"""

from __future__ import annotations

from torchweld.codegen.triton import scalars
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.nodes import Reduce, Value
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel

OPERATION = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "maximum",
    "all": "minimum",
    "sort": "minimum",  # what is beyond a row comes behind it
}


def carry_type(dtype: DType) -> DType:
    """What a running result is kept in: small integers and bools in i32, 16-bit floats in f32."""
    if dtype.is_float:
        return dtypes.compute(dtype)
    return dtype if dtype.bits >= 32 else dtypes.i32


def identity(monoid: str, dtype: DType) -> str:
    kind = OPERATION.get(monoid, "maximum" if monoid != "argmin" else "minimum")
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
    if set(k.along(k.axes[value])) != set(along) or k.may_be_scalar(k.axes[value]):
        text = f"tl.broadcast_to({text}, {k.shape(along)})"
    return text


def nowhere(dtype: DType) -> str:
    """Behind every position."""
    return str(2 ** (dtype.bits - 1) - 1)


def combined(k: Kernel, monoid: str, dtype: DType, a: str, b: str) -> str:
    return k.operation(OPERATION[monoid], carry_type(dtype).kind, a, b)


def reduced(k: Kernel, monoid: str, tile: str, dimension: int) -> str:
    """One dimension of a tile reduced, kept with extent one."""
    if monoid == "sum":
        return f"tl.sum({tile}, axis={dimension}, keep_dims=True)"
    name = "_reduce_" + OPERATION[monoid]
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
        at = f"tl.where({mask}, {at}, {nowhere(k.body[instr.args[1]].dtype)})"
    if set(along) != set(k.along(k.axes[instr.args[1]])):
        at = f"tl.broadcast_to({at}, {k.shape(along)})"
    names = [f"v{value}_0", f"v{value}_1"]
    k.line(f"{', '.join(names)} = tl.reduce(({best}, {at}), 1, _{instr.monoid}, keep_dims=True)")
    return names


def _welford_block(k: Kernel, value: Value, instr: Reduce, along: str) -> list[str]:
    """The mean is one of the sum, and then of what is left: so it is that of a constant row."""
    dtype = carry_type(instr.dtype)
    shape = k.shape(along.replace("c", ""))
    count = k.assign((value, 2), f"tl.full({shape}, {k.columns}, {scalars.TYPES[dtype]})")
    mean = f"m{value}"
    k.line(f"{mean} = {_mean(k, masked(k, 'sum', instr.args[0], along), count)}")
    mean = k.assign((value, 0), f"{mean} + {_mean(k, _apart(k, value, mean, along), count)}")
    k.line(f"d{value} = {_apart(k, value, mean, along)}")
    return [mean, k.assign((value, 1), reduced(k, "sum", f"d{value} * d{value}", 1)), count]


def _mean(k: Kernel, tile: str, count: str) -> str:
    return scalars.FLOAT["div"].format(reduced(k, "sum", tile, 1), count)


def _apart(k: Kernel, value: Value, mean: str, along: str) -> str:
    """Numbers less a mean as a tile over `along`, zero out of bounds."""
    number = k.body[value].args[0]
    text = f"{k.value(number)} - {mean}"
    if mask := k.mask("c"):
        text = f"tl.where({mask}, {text}, 0.0)"
    if set(k.along(k.axes[number])) != set(along):
        text = f"tl.broadcast_to({text}, {k.shape(along)})"
    return text


def _logsumexp_block(k: Kernel, value: Value, instr: Reduce, along: str) -> list[str]:
    tile = masked(k, "max", instr.args[0], along)
    top = k.assign((value, 0), reduced(k, "max", tile, 1))
    shift = f'tl.where({top} == float("-inf"), 0.0, {top})'  # nothing where all are -inf
    exp = k.operation("exp", "float", f"({tile} - {shift})")
    return [top, k.assign((value, 1), f"tl.sum({exp}, axis=1, keep_dims=True)")]


_BLOCKS = {
    "argmax": _position_block,
    "argmin": _position_block,
    "welford": _welford_block,
    "logsumexp": _logsumexp_block,
}
