"""A library's product of matrices as a Comp: the same mathematics, written so that its neighbours
can be merged into it.

    extern mm t = "aten.mm.default"(view(x, [10, 24], [24, 1], 0), view(w, [24, 7], [1, 24], 0))
 -> comp mm [m0:2, m1:5, n:7, k:24] {
      %0 = load x[m0, m1, k] : bf16
      %1 = cast %0 : f32
      %2 = load w[n, k] : bf16
      %3 = cast %2 : f32
      %4 = mul %1 %3 : f32
      %5 = reduce.sum[k] %4 : f32
      %6 = cast %5 : bf16
      store t[5*m0+m1, n] %6
    }

Operands are strided windows on buffers of any rank. Per logical dimension, the loops that the
windows are made of are refined to common ones, and each becomes an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.contraction import ACCUMULATED
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, IndexMap, Origin, Store, View
from torchweld.ir.size import Size, divide
from torchweld.ir.substitute import drop_unit_axes
from torchweld.ir.views import (
    Atom,
    Dim,
    Tensor,
    contiguous_strides,
    merged,
    refine,
    split_to,
    whole,
)


@dataclass(frozen=True, slots=True)
class _Call:
    """alpha * left [.., rows, depth] @ right [.., depth, columns] + beta * bias; the dimensions of
    `right` before its last two are batches."""

    left: View
    right: View
    bias: View | None = None
    alpha: float = 1
    beta: float = 1


def _plus(bias: View, left: View, right: View, *, alpha: float = 1, beta: float = 1) -> _Call:
    return _Call(left, right, bias if beta != 0 else None, alpha, beta)


_OF_INTEGERS, _WIDE = "aten._int_mm.default", "torchweld.wide_product.default"
_READERS: Mapping[str, Callable[..., _Call]] = {
    _OF_INTEGERS: _Call,
    "aten.mm.default": _Call,
    "aten.bmm.default": _Call,
    _WIDE: _Call,
    "aten.addmm.default": _plus,
    "aten.baddbmm.default": _plus,
    "aten.linear.default": lambda x, w, b=None: _Call(x, w.transposed, b),
}


def is_product(node) -> bool:
    """Whether the node is a library's product of float matrices."""
    known = isinstance(node, Extern) and node.target in _READERS
    return known and node.target != _OF_INTEGERS and node.outputs[0] is not None


def is_integer_product(node) -> bool:
    """Whether the node is a library's product of 8-bit integers, with sums in 32 bits."""
    return isinstance(node, Extern) and node.target == _OF_INTEGERS and node.outputs[0] is not None


def operands_of(node: Extern) -> tuple[View, View]:
    """The matrices of a product: [.., rows, depth] and [.., depth, columns]."""
    call = _READERS[node.target](*node.args, **dict(node.kwargs))
    return call.left, call.right


def left_operand(node: Extern) -> View:
    """The left matrix of a product."""
    return operands_of(node)[0]


def is_batched(node: Extern) -> bool:
    """Whether the first dimension of a product's result is a batch of the right matrix too."""
    return len(operands_of(node)[1].shape) > 2


def product_comp(node: Extern, buffers: Mapping[str, Buffer]) -> Comp | None:
    """The Comp of a product of float matrices of one dtype, or of 8-bit integers; None for others,
    and for windows that no map without div and mod describes."""
    whole = is_integer_product(node)
    if not whole and not is_product(node):
        return None
    call, result = _READERS[node.target](*node.args, **dict(node.kwargs)), node.outputs[0]
    named = [v.buffer for v in (call.left, call.right, call.bias) if v]
    named += [result] if node.target != _WIDE else []
    if not whole and not _alike([buffers[n].dtype for n in named]):
        return None
    operands = _operands(call, buffers, buffers[result])
    return operands and _comp(node, call, operands)


def _alike(kinds: Sequence[DType]) -> bool:
    return len(set(kinds)) == 1 and kinds[0].is_float


@dataclass(frozen=True, slots=True)
class _Operands:
    """Each with one dimension per dimension of the result, broadcast where it does not vary, and
    the depth as the last one."""

    left: Tensor
    right: Tensor
    bias: Tensor | None
    result: Tensor


def _operands(call: _Call, buffers: Mapping[str, Buffer], result: Buffer) -> _Operands | None:
    left, right, bias = (
        v and window(v, buffers[v.buffer]) for v in (call.left, call.right, call.bias)
    )
    if left is None or right is None or (bias is None) != (call.bias is None):
        return None
    rank = len(result.shape)
    batch, (depth, columns) = right.dims[:-2], right.dims[-2:]
    missing = ((),) * (rank - 1 - len(batch))
    right = replace(right, dims=(*batch, *missing, columns, depth))
    left = replace(left, dims=(*left.dims[:-1], (), left.dims[-1]))
    bias = bias and replace(bias, dims=((),) * (rank - bias.rank) + bias.dims)
    return _Operands(left, right, bias, whole(result))


def window(view: View, buffer: Buffer) -> Tensor | None:
    """The strided window `view` as loops over the buffer's dimensions; None where a loop has no
    affine map.

    [10, 24] strides [24, 1] of a buffer [2, 5, 24]  ->  dims ((2@0, 5@1), (24@2))
    """
    order = _by_stride(buffer)
    base = _digits(view.offset, buffer, order)
    dims = [_loops(n, s, buffer, order) for n, s in zip(view.shape, view.strides)]
    if base is None or None in dims:
        return None
    tensor = Tensor(buffer.name, buffer.dtype, buffer.device, tuple(dims), base)
    return tensor if _in_bounds(tensor, buffer) else None


def _by_stride(buffer: Buffer) -> list[int]:
    """Dimensions of more than one element, innermost first."""
    dense = contiguous_strides(buffer.shape) == buffer.strides
    known = all(isinstance(s, int) for s in buffer.strides)
    order = [d for d in reversed(range(len(buffer.shape))) if buffer.shape[d] != 1]
    return order if dense or not known else sorted(order, key=lambda d: buffer.strides[d])


def _digits(offset: Size, buffer: Buffer, order: list[int]) -> tuple[Size, ...] | None:
    base: list[Size] = [0] * len(buffer.shape)
    for d in reversed(order):
        stride = buffer.strides[d]
        if isinstance(offset, int) and isinstance(stride, int) and stride > 0:
            base[d], offset = divmod(offset, stride)
        elif (exact := divide(offset, stride)) is not None:
            base[d], offset = exact, 0
    return tuple(base) if offset == 0 else None


def _loops(size: Size, stride: Size, buffer: Buffer, order: list[int]) -> Dim | None:
    """The loops of one dimension of a window, outermost first. A loop that leaves a dimension of
    the buffer goes on in the one around it."""
    if size == 1:
        return ()
    if stride == 0:
        return (Atom(size, ()),)
    loops: list[Atom] = []
    while size != 1:
        found = _widest(stride, buffer, order)
        if found is None:
            return None
        d, step = found
        room = _steps_inside(buffer.shape[d], step, last=d == order[-1])
        if room is None or _fits(size, room):
            loops.append(Atom(size, ((d, step),)))
            break
        size = divide(size, room)
        if size is None or room == 1:
            return None
        loops.append(Atom(room, ((d, step),)))
        stride = stride * room
    return merged(loops[::-1])


def _widest(stride: Size, buffer: Buffer, order: list[int]) -> tuple[int, Size] | None:
    """The outermost dimension that `stride` is a multiple of, and that multiple."""
    for d in reversed(order):
        step = divide(stride, buffer.strides[d]) if buffer.strides[d] != 0 else None
        if step is not None:
            return d, step
    return None


def _steps_inside(extent: Size, step: Size, last: bool) -> Size | None:
    """How many steps a loop can make before it leaves the dimension; None: as many as it likes,
    bounds are checked at the end."""
    return divide(extent, step) if not last and divide(extent, step) is not None else None


def _fits(size: Size, room: Size) -> bool:
    return size == room or (isinstance(size, int) and isinstance(room, int) and size <= room)


def _in_bounds(tensor: Tensor, buffer: Buffer) -> bool:
    """Every index lies inside the buffer, whatever the symbols are."""
    high = list(tensor.base)
    for atom in (a for dim in tensor.dims for a in dim):
        for d, c in atom.steps:
            high[d] = high[d] + c * (atom.extent - 1)
    return all(_below(last, extent) for last, extent in zip(high, buffer.shape))


def _below(last: Size, extent: Size) -> bool:
    room = extent - 1 - last
    return isinstance(room, int) and room >= 0


# -- the Comp --


def copied_window(
    name: str, view: View, source: Buffer, target: Buffer, origins: tuple[Origin, ...]
) -> Comp | None:
    """target[...] = view[...], with zeros where the target's last dimension is longer; None for
    windows that no map without div and mod describes."""
    found = window(view, source)
    filled = view.shape != target.shape
    if found is None or (filled and len(found.dims[-1]) != 1):
        return None
    if filled:
        (last,) = found.dims[-1]
        found = replace(found, dims=(*found.dims[:-1], (replace(last, extent=target.shape[-1]),)))
    axes = [
        tuple(Axis(f"i{d}_{n}", atom.extent) for n, atom in enumerate(dim))
        for d, dim in enumerate(found.dims)
    ]
    body, guard = BodyBuilder(), None
    if filled:
        last = body.index(affine.axis(axes[-1][0].name))
        guard = body.op("lt", last, body.const(view.shape[-1], dtypes.i64))
    value = body.load(source.name, _index(found, axes), source.dtype, guard, 0.0)
    every = tuple(a for group in axes for a in group)
    store = Store(target.name, _index(whole(target), axes), value)
    return drop_unit_axes(Comp(name, every, body.body, (store,), origins))


def _comp(node: Extern, call: _Call, operands: _Operands) -> Comp | None:
    given = [t for t in (operands.left, operands.right, operands.bias, operands.result) if t]
    rank = operands.result.rank
    axes: list[tuple[Axis, ...]] = []
    for d in range(rank + 1):
        extents = _common([t.dims[d] for t in given if d < t.rank])
        if extents is None:
            return None
        axes.append(tuple(Axis(n, e) for n, e in zip(_names(d, rank, len(extents)), extents)))
    body = BodyBuilder()
    factors = (_loaded(body, t, axes) for t in (operands.left, operands.right))
    depth = tuple(a.name for a in axes[-1])
    value = body.reduce("sum", (body.op("mul", *factors),), depth)
    value = _scaled(body, value, call.alpha)
    if operands.bias is not None:
        bias = _scaled(body, _loaded(body, operands.bias, axes), call.beta)
        value = body.op("add", value, bias)
    value = body.cast(value, operands.result.dtype)
    store = Store(node.outputs[0], _index(operands.result, axes), value)
    every = tuple(a for group in axes for a in group)
    return drop_unit_axes(Comp(node.name, every, body.body, (store,), node.origins))


def _common(dims: Iterable[Dim]) -> list[Size] | None:
    """Extents of the axes of one logical dimension: one for a dimension of one element too."""
    factors = [[a.extent for a in dim] for dim in dims if dim]
    if not factors:
        return [1]
    return reduce(lambda a, b: None if a is None else refine(a, b), factors)


def _names(d: int, rank: int, count: int) -> list[str]:
    """k for the depth, n for the last dimension of the result, m for the one before, then b."""
    letters = {rank: "k", rank - 1: "n", rank - 2: "m"}
    letter = letters.get(d, f"b{d}" if rank > 3 else "b")
    return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]


def _index(tensor: Tensor, axes: Sequence[tuple[Axis, ...]]) -> IndexMap:
    entries: list[Affine] = [affine.constant(b) for b in tensor.base]
    for dim, group in zip(tensor.dims, axes):
        for atom, axis in zip(split_to(dim, [a.extent for a in group]) if dim else (), group):
            for d, step in atom.steps:
                entries[d] = entries[d] + affine.axis(axis.name) * step
    return tuple(entries)


def _loaded(body: BodyBuilder, tensor: Tensor, axes: Sequence[tuple[Axis, ...]]) -> int:
    """The operand's element, in the type that products of its own are added up in."""
    value = body.load(tensor.source, _index(tensor, axes), tensor.dtype)
    return body.cast(value, ACCUMULATED.get(tensor.dtype, tensor.dtype))


def _scaled(body: BodyBuilder, value: int, factor: float) -> int:
    if factor == 1:
        return value
    return body.op("mul", value, body.const(float(factor), body[value].dtype))

