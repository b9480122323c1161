"""The meaning of the IR, by torch operations: the oracle (`exact`) and the way to run a kernel that
did not compile.

Every value is a tensor with one dimension per axis of its Comp, of extent one along the axes that
it does not depend on, so that broadcasting does what the grammar says. Values die after their last
use. Products that are only summed are contracted (`ir/factors.py`). A Comp whose values would be
much larger than its buffers is evaluated in pieces along an axis that nothing reduces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir import monoid
from torchweld.ir.affine import Affine
from torchweld.ir.bind import bind
from torchweld.ir.factors import Factors, deferred
from torchweld.ir.index_check import CHECK_INDEX, check_index
from torchweld.ir.nodes import (
    Attr,
    Buffer,
    Cast,
    Comp,
    Const,
    Extern,
    Graph,
    Index,
    IndexMap,
    Load,
    Op,
    Pick,
    Reduce,
    Ref,
    Scan,
    Store,
    View,
    map_axes,
    operands,
    reduced_axes,
    store_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.parts import parts
from torchweld.ir.row_sums import ROW_SUMS
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import Poly, evaluate

PIECE_ELEMENTS = (
    2**24
)  # a value larger than this, and than twice the largest buffer, comes in pieces
_SCATTER = {"max": "amax", "min": "amin", "mul": "prod"}


def run_comp(
    comp: Comp,
    buffers: Mapping[str, Tensor],
    layouts: Mapping[str, Buffer],
    sizes: Mapping[str, int],
    exact: bool = False,
    into: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The buffers that `comp` writes.

    `buffers`: what it reads (any strides). `layouts`: shape, strides and dtype of what it writes.
    `sizes`: the shape symbols. `into`: tensors to write to instead of new ones; they must not share
    memory with what is read under another name. `exact`: floats are computed and stored in float64
    whatever their dtype; otherwise everything has the dtype written.
    """
    read = [buffers[name] for name in comp.reads]
    device = _device(read) or torch.device(layouts[comp.writes[0]].device)
    written = {
        n: allocate(layouts[n], sizes, device, exact) for n in comp.writes if n not in (into or {})
    }
    written |= {n: t for n, t in (into or {}).items() if n in comp.writes}
    in_place = {n: buffers[n].clone() for n in comp.reads if n in comp.writes}
    buffers = {**buffers, **in_place}
    _initialise(comp.stores, buffers, written)
    for part in parts(comp):
        extents = {a.name: evaluate(a.extent, sizes) for a in part.axes}
        for ranges in _pieces(part, extents, [*read, *written.values()]):
            _run_piece(part, _Point(buffers, sizes, ranges, device, exact), written)
    return written


def run_graph(
    graph: Graph,
    inputs: Sequence,
    extern: Callable[[Extern, list, dict], object] | None = None,
    exact: bool = True,
) -> list:
    """The outputs of `graph` for positional `inputs`. `extern(node, args, kwargs)` makes a library
    call and returns its result or tuple of results; by default the ATen overload that the node
    names."""
    sizes = bind(graph.symbols, inputs)
    tensors = {n: t for n, t in zip(graph.inputs, inputs) if n is not None}
    if exact:
        tensors = {n: _widened(t) for n, t in tensors.items()}
    given = dict(tensors)
    for node in graph.nodes:
        if isinstance(node, Comp):
            tensors |= run_comp(node, tensors, graph.buffers, sizes, exact, into=given)
        else:
            tensors |= _run_extern(node, tensors, graph.buffers, sizes, exact, extern or call_aten)
    return [resolve(o, tensors, sizes) for o in graph.outputs]


def call_aten(node: Extern, args: list, kwargs: dict):
    """Calls the overload `namespace.name.overload` that the node names; checks indices."""
    if node.target == CHECK_INDEX:
        return check_index(node, *args)
    if node.target in ROW_SUMS:
        return ROW_SUMS[node.target](*args)
    namespace, name, overload = node.target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)(*args, **kwargs)


def resolve(arg, tensors: Mapping[str, Tensor], sizes: Mapping[str, int], exact: bool = False):
    """An Extern's argument or a graph's output as the Python value that it stands for."""
    if isinstance(arg, View):
        shape, strides = ([evaluate(s, sizes) for s in part] for part in (arg.shape, arg.strides))
        base = tensors[arg.buffer]
        return base.as_strided(shape, strides, base.storage_offset() + evaluate(arg.offset, sizes))
    if isinstance(arg, Attr):
        return _attribute(arg, exact)
    if isinstance(arg, Poly):
        return evaluate(arg, sizes)
    if isinstance(arg, tuple):
        return [resolve(a, tensors, sizes, exact) for a in arg]
    return arg


def allocate(layout: Buffer, sizes: Mapping[str, int], device: torch.device, exact: bool) -> Tensor:
    """An uninitialised tensor of the buffer's layout."""
    shape = [evaluate(s, sizes) for s in layout.shape]
    strides = [evaluate(s, sizes) for s in layout.strides]
    return torch.empty_strided(shape, strides, dtype=_torch(layout.dtype, exact), device=device)


# -- one piece of a Comp --


@dataclass(frozen=True)
class _Point:
    """Where a Comp is evaluated: `ranges` are [start, stop) of each axis, in the Comp's order."""

    buffers: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]]
    device: torch.device
    exact: bool

    def shape(self, axes) -> list[int]:
        """Full extents along `axes`, one elsewhere."""
        return [stop - start if n in axes else 1 for n, (start, stop) in self.ranges.items()]

    def dims(self, axes) -> tuple[int, ...]:
        return tuple(d for d, name in enumerate(self.ranges) if name in axes)

    def affine(self, index: Affine) -> tuple[dict[str, int], int]:
        """Coefficients, and the constant at the start of the ranges."""
        steps = {n: evaluate(c, self.sizes) for n, c in index.terms}
        start = evaluate(index.const, self.sizes)
        return steps, start + sum(c * self.ranges[n][0] for n, c in steps.items())

    def coordinates(self, index: Affine) -> Tensor:
        """The i64 values of an affine map."""
        steps, start = self.affine(index)
        total = torch.full(self.shape(()), start, dtype=torch.int64, device=self.device)
        for name, step in steps.items():
            start, stop = self.ranges[name]
            along = (
                torch.arange(0, (stop - start) * step, step, device=self.device) if step else None
            )
            total = total if along is None else total + along.view(self.shape((name,)))
        return total


def _device(tensors: list[Tensor]) -> torch.device | None:
    """Where to compute: a scalar on the CPU may meet tensors on another device."""
    return max((t.device for t in tensors), key=lambda d: d.type != "cpu", default=None)


def _run_piece(comp: Comp, point: _Point, written: Mapping[str, Tensor]) -> None:
    values: list = []
    axes, dying, products = value_axes(comp.body), _last_uses(comp), deferred(comp)
    for position, instr in enumerate(comp.body):
        if position in products:
            values.append(Factors(*(values[a] for a in instr.args)))
        else:
            values.append(_evaluate(instr, values, point))
        for dead in dying.get(position, ()):
            values[dead] = None
    for store in comp.stores:
        _store(store, store_axes(comp, store, axes), values, point, written[store.buffer])


def _last_uses(comp: Comp) -> dict[int, list[int]]:
    """For each instruction, the values that nothing needs after it."""
    kept = {v for s in comp.stores for v in store_operands(s)}
    last = {v: position for position, instr in enumerate(comp.body) for v in operands(instr)}
    dying: dict[int, list[int]] = {}
    for value, position in last.items():
        if value not in kept:
            dying.setdefault(position, []).append(value)
    return dying


def _pieces(comp: Comp, extents: Mapping[str, int], tensors: list[Tensor]):
    """The ranges to evaluate one after the other: usually one that covers everything."""
    whole = {name: (0, extent) for name, extent in extents.items()}
    limit = max([PIECE_ELEMENTS, *(2 * t.numel() for t in tensors)])
    products = deferred(comp)
    spans = [s for v, s in enumerate(value_axes(comp.body)) if v not in products]
    largest = max((_points(span, extents) for span in spans), default=1)
    axis = _divisible_axis(comp, extents) if largest > limit else None
    if axis is None:
        return [whole]
    step = max(1, extents[axis] * limit // largest)
    starts = range(0, extents[axis], step)
    return [{**whole, axis: (start, min(start + step, extents[axis]))} for start in starts]


def _divisible_axis(comp: Comp, extents: Mapping[str, int]) -> str | None:
    """The longest axis that no reduction or scan runs over."""
    fixed = reduced_axes(comp)
    fixed |= {i.axis for i in comp.body if isinstance(i, Scan)}
    free = [name for name in extents if name not in fixed]
    return max(free, key=extents.get, default=None)


def _points(axes, extents: Mapping[str, int]) -> int:
    count = 1
    for name in axes:
        count *= extents[name]
    return count


# -- instructions --


@singledispatch
def _evaluate(instr, values: list, point: _Point):
    raise TypeError(f"{instr!r} is no instruction")


@_evaluate.register
def _(i: Const, values: list, point: _Point):
    dtype = _torch(i.dtype, point.exact)
    return torch.full(point.shape(()), i.value, dtype=dtype, device=point.device)


@_evaluate.register
def _(i: Index, values: list, point: _Point):
    return point.coordinates(i.map).to(_torch(i.dtype, point.exact))


@_evaluate.register
def _(i: Load, values: list, point: _Point):
    tensor = point.buffers[i.buffer]
    dtype = _torch(i.dtype, point.exact)
    if i.guard is None:
        return _read(tensor, i.index, values, point).to(point.device, dtype)
    guard, fill = values[i.guard], torch.full((), i.fill, dtype=dtype, device=point.device)
    if tensor.numel() == 0:
        return fill.expand(torch.broadcast_shapes(point.shape(map_axes(i.index)), guard.shape))
    inside = [p.clamp(0, n - 1) for p, n in zip(_places(i.index, values, point), tensor.shape)]
    found = tensor[tuple(inside)] if inside else tensor.view(point.shape(()))
    return torch.where(guard, found.to(point.device, dtype), fill)


@_evaluate.register
def _(i: Op, values: list, point: _Point):
    return _to(TABLE[i.name].meaning(*(values[a] for a in i.args)), i.dtype, point.exact)


@_evaluate.register
def _(i: Cast, values: list, point: _Point):
    return _to(values[i.arg], i.dtype, point.exact)


@_evaluate.register
def _(i: Reduce, values: list, point: _Point):
    row, dims = monoid.TABLE[i.monoid], point.dims(i.axes)
    if isinstance(values[i.args[0]], Factors):
        sizes = dict(enumerate(point.shape(point.ranges)))
        return _to(values[i.args[0]].summed(dims, sizes), i.dtype, point.exact)
    args = [_spread(a, dims, point) for a in torch.broadcast_tensors(*(values[a] for a in i.args))]
    if any(args[0].shape[d] == 0 for d in dims):
        results = _identities(row, args, dims)
    else:
        results = row.over(args, dims)
    return results[0] if row.results == 1 else results


@_evaluate.register
def _(i: Scan, values: list, point: _Point):
    dims = point.dims((i.axis,))
    arg = _spread(values[i.arg], dims, point)
    if arg.numel() == 0:
        return arg
    return _to(monoid.TABLE[i.monoid].scan(arg, dims[0]), i.dtype, point.exact)


@_evaluate.register
def _(i: Pick, values: list, point: _Point):
    return values[i.arg][i.item]


def _spread(value: Tensor, dims: tuple[int, ...], point: _Point) -> Tensor:
    """`value` at its full extent along `dims`, also where it does not vary along them."""
    whole = point.shape(point.ranges)
    return value.expand([whole[d] if d in dims else n for d, n in enumerate(value.shape)])


def _identities(row: monoid.Monoid, args: list[Tensor], dims: tuple[int, ...]) -> list[Tensor]:
    """The results of a reduction over nothing."""
    shape = [1 if d in dims else n for d, n in enumerate(args[0].shape)]
    results = []
    for item in range(row.results):
        like = args[min(item, len(args) - 1)]
        identity = monoid.identity_of(row.name, dtypes.from_torch(like.dtype), item)
        results.append(like.new_full(shape, identity))
    return results


# -- memory --


def _read(tensor: Tensor, index: IndexMap, values: list, point: _Point) -> Tensor:
    """buffer[index] without a guard; a view where strides can say it."""
    window = _window(tensor, index, map_axes(index), point)
    if window is not None:
        return window
    places = _places(index, values, point)
    if tensor.numel() == 0:  # at no point of the Comp
        return tensor.new_zeros(torch.broadcast_shapes(*(p.shape for p in places)))
    return tensor[places]


def _window(tensor: Tensor, index: IndexMap, axes, point: _Point) -> Tensor | None:
    """The strided view of `tensor` that an affine map is, over `axes`; None for an indirect one or
    a negative step."""
    if any(isinstance(entry, Ref) for entry in index):
        return None
    strides, offset = dict.fromkeys(point.ranges, 0), tensor.storage_offset()
    for entry, stride in zip(index, tensor.stride()):
        steps, start = point.affine(entry)
        offset += start * stride
        for name, step in steps.items():
            strides[name] += step * stride
    shape = point.shape(axes)
    if 0 in shape or tensor.numel() == 0:  # one place for all points, of which there are none
        return tensor.new_zeros(shape)
    if offset < 0 or any(s < 0 for s in strides.values()):
        return None
    return tensor.as_strided(shape, list(strides.values()), offset)


def _places(index: IndexMap, values: list, point: _Point) -> tuple[Tensor, ...]:
    """One index tensor per dimension of the buffer."""
    return tuple(
        values[entry.value].long() if isinstance(entry, Ref) else point.coordinates(entry)
        for entry in index
    )


def _initialise(
    stores: tuple[Store, ...], buffers: Mapping[str, Tensor], written: Mapping[str, Tensor]
) -> None:
    for store in stores:
        if isinstance(store.init, str):
            written[store.buffer].copy_(buffers[store.init])
        elif store.init is not None:
            written[store.buffer].fill_(store.init)


def _store(store: Store, axes, values: list, point: _Point, target: Tensor) -> None:
    value = values[store.value]
    if store.combine is None and store.guard is None:
        window = _window(target, store.index, axes, point)
        if window is not None:
            window.copy_(value)
            return
    shape = point.shape(axes)
    places = [p.expand(shape).reshape(-1) for p in _places(store.index, values, point)]
    value = value.expand(shape).reshape(-1).to(target.dtype)
    if store.guard is not None:
        chosen = values[store.guard].expand(shape).reshape(-1).nonzero()[:, 0]
        places, value = [p[chosen] for p in places], value[chosen]
    _write(target, places, value, store.combine)


def _write(target: Tensor, places: list[Tensor], value: Tensor, combine: str | None) -> None:
    """target[places] <- value, for vectors of indices and values."""
    if value.numel() == 0 or target.numel() == 0:
        return
    flat = torch.zeros_like(value, dtype=torch.int64)
    for place, extent in zip(places, target.shape):
        flat = flat * extent + place
    memory = target.reshape(-1)  # a copy unless contiguous
    if combine == "add_runs":
        wide = torch.float64 if target.dtype == torch.float64 else torch.float32
        sums = torch.zeros_like(memory, dtype=wide)
        memory.copy_(sums.index_put_((flat,), value.to(wide), accumulate=True))
    elif combine is None or combine == "add":
        memory.index_put_((flat,), value, accumulate=combine == "add")
    else:
        memory.scatter_reduce_(0, flat, value, _SCATTER[combine])
    if memory.data_ptr() != target.data_ptr():
        target.copy_(memory.view(target.shape))


# -- types --


def _torch(dtype: DType, exact: bool) -> torch.dtype:
    return torch.float64 if exact and dtype.is_float else dtypes.to_torch(dtype)


def _to(tensor: Tensor, dtype: DType, exact: bool) -> Tensor:
    return tensor.to(_torch(dtype, exact))


def _widened(value):
    """A float tensor in float64 with the same strides, memory that views may reach included;
    anything else as it is."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    count = value.untyped_storage().nbytes() // value.element_size()
    memory = value.as_strided((count,), (1,), 0).to(torch.float64, copy=True)
    return memory.as_strided(value.shape, value.stride(), value.storage_offset())


def _attribute(attr: Attr, exact: bool):
    if attr.kind == "dtype":
        known = dtypes.BY_NAME.get(attr.name)
        return _torch(known, exact) if known else getattr(torch, attr.name)
    if attr.kind == "device":
        return torch.device(attr.name)
    return getattr(torch, attr.name)  # layouts (strided), memory formats (channels_last)


def _run_extern(
    node: Extern, tensors, layouts, sizes, exact: bool, call: Callable
) -> dict[str, Tensor]:
    args = [resolve(a, tensors, sizes, exact) for a in node.args]
    kwargs = {k: resolve(a, tensors, sizes, exact) for k, a in node.kwargs}
    results = call(node, args, kwargs)
    results = results if isinstance(results, (tuple, list)) else (results,)
    found = {n: r for n, r in zip(node.outputs, results) if n is not None}
    return {n: _conform(r, layouts[n], sizes, exact) for n, r in found.items()}


def _conform(tensor: Tensor, layout: Buffer, sizes: Mapping[str, int], exact: bool) -> Tensor:
    """A result in the layout that its readers expect."""
    strides = tuple(evaluate(s, sizes) for s in layout.strides)
    dtype = _torch(layout.dtype, exact)
    if tensor.dtype == dtype and (tensor.stride() == strides or tensor.numel() <= 1):
        return tensor
    return allocate(layout, sizes, tensor.device, exact).copy_(tensor)
