"""Indirect writes: scatter, index_put, the gradient of an embedding. Only what does not depend on
the order of writes is a Comp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from torchweld.capture.lowering.call import Call, normal
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.externs import window
from torchweld.capture.lowering.indexing import IndexLayout
from torchweld.capture.lowering.nest import Nest, Spec, aligned, copied
from torchweld.capture.lowering.one_each import put_one_each, rows_of
from torchweld.capture.lowering.ordered import Places, sums_in_order
from torchweld.capture.lowering.ranges import (
    all_of,
    check_range,
    in_range,
    is_inside,
    is_within,
    run_of,
)
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir import views
from torchweld.ir.nodes import Extern
from torchweld.ir.size import Size, product
from torchweld.ir.views import Fill, Tensor

_COMBINE = {"sum": "add", "amax": "max", "amin": "min"}
_LARGE = 1 << 20  # elements of a result that take longer to widen than a kernel to begin
# Up to so many indices, ATen's gradient of an embedding is one kernel, without a sort: 32 columns a
# program, which takes one index after the other. So few sums look at all indices: of 1798 rows of
# 26 to 257 an H200 takes 13 us in place of 46, of 512 of 64 to 100 3 in place of 17. Of 2048 of
# 1000 to 64 it would take 57 for 52.
_FEW_INDICES, _FEW_SUMS = 3072, 1 << 15
_PAIRED = {"add": "add", "max": "maximum", "min": "minimum"}  # operations of two elements


def _start(call: Call, x: Tensor, wide: bool) -> tuple[Tensor, float | str]:
    """(result buffer as a tensor, Store.init) to combine into: a number, or the name of a buffer
    to copy. `wide`: sums, of 16-bit floats in float32."""
    spec = call.out
    dtype = dtypes.compute(spec.dtype) if wide else spec.dtype
    strides = views.contiguous_strides(spec.shape)
    buffer = call.graph.buffer(call.name, spec.shape, dtype, strides, spec.device)
    if isinstance(x.source, Fill):
        return views.whole(buffer), x.source.value
    widened = _converted(call, x, Spec(spec.shape, strides, dtype, spec.device))
    return views.whole(buffer), widened.source


def _converted(call: Call, x: Tensor, spec: Spec) -> Tensor:
    """x in a buffer of `spec` alone, or the buffer that it is already."""
    whole = (
        x.buffer
        and x.dtype == spec.dtype
        and call.graph.view_of(x) == call.graph.view_of(views.whole(call.graph.buffers[x.source]))
    )
    if whole and call.graph.buffers[x.source].strides == spec.strides:
        return x
    return copied(call.graph, x, spec.strides, spec.dtype)


def _narrowed(call: Call, result: Tensor) -> Tensor:
    """16-bit results are combined in float32 and rounded once."""
    if result.dtype == call.out.dtype:
        return result
    nest = call.nest(result.shape, result)
    return call.finish(nest, nest.read(result).to(call.out.dtype))


def _write(
    call: Call, nest: Nest, target: Tensor, init, index, value: Expr, combine, guard=None
) -> Tensor:
    buffer = call.graph.buffers[target.source]
    places = [nest.at(i) if isinstance(i, int) else i for i in index]
    held = None if guard is None else guard.value
    nest.put(buffer, places, value.to(buffer.dtype), combine=combine, init=init, guard=held)
    nest.close()
    return target


def _needs_float(call: Call) -> None:
    if not (call.out.dtype.is_float or call.out.dtype.is_integral):
        raise NotLowered("no combination of this dtype")


def _needs_atomics(call: Call, combine: str | None, shape: Sequence[Size]) -> None:
    """Those of a GPU have no extremes of floats, some of which may be NaN. They add floats in
    another order each time, as eager's do, unless the user asks for the same order. `shape`: of
    what is combined."""
    if combine is None or not call.out.dtype.is_float or not call.out.device.startswith("cuda"):
        return
    if combine != "add":
        raise NotLowered(f"no atomic {combine} of {call.out.dtype} on a GPU")
    if torch.are_deterministic_algorithms_enabled():
        raise NotLowered("atomic sums would not repeat from run to run, which "
                         "torch.use_deterministic_algorithms asks for")  # fmt: skip
    points, elements = product(shape), product(call.out.shape)
    known = isinstance(points, int) and isinstance(elements, int)
    if call.out.dtype.is_low_precision and known and elements > max(_LARGE, 4 * points):
        raise NotLowered("a few sums into many elements of 16 bits, each of which would be widened")


@lowers("aten.scatter_add.default")
def scatter_add(call: Call, x, d, index, source):
    return _scatter(call, x, d, index, source, "add")


@lowers("aten.scatter_reduce.two")
def scatter_reduce(call: Call, x, d, index, source, reduce, *, include_self=True):
    if include_self and reduce in _COMBINE:
        return _scatter(call, x, d, index, source, _COMBINE[reduce])
    return _mean_or_sum(call, x, normal(d, x.rank), index, source, reduce, include_self)


@lowers("aten.index_reduce.default")
def index_reduce(call: Call, x, d, index, source, reduce, *, include_self=True):
    d = normal(d, x.rank)
    if index.rank != 1 or source.rank != x.rank:
        raise NotLowered("index_reduce of a scalar")
    dims = tuple(index.dims[0] if k == d else () for k in range(x.rank))
    along = views.expand(replace(index, dims=dims), source.shape)
    return _mean_or_sum(call, x, d, along, source, reduce, include_self)


@lowers("aten.scatter.value")
def scatter_value(call: Call, x, d, index, value):
    return _scatter(call, x, d, index, value, None)


@lowers("aten.scatter.src")
def scatter_source(call: Call, x, d, index, source):
    """On a CPU the last of several writes to one element is the last along d, as in eager: whoever
    writes there writes all of them, in order (templates/pointwise_reduce/cpu/schedule.py)."""
    d = normal(d, max(x.rank, 1))
    if call.out.device != "cpu" and not _one_each(x, d, index, source):
        raise NotLowered("which of several writes to one element is the last")
    return _scatter(call, x, d, index, source, None)


def _one_each(x: Tensor, d: int, index: Tensor, source) -> bool:
    """Whether each row along `d` gets one element: the gradient of a maximum, or of a choice."""
    each = (*x.shape[:d], 1, *x.shape[d + 1 :])
    given = source.shape if isinstance(source, Tensor) else each
    return x.rank > 0 and index.shape == each and given == each


def _chosen(call: Call, x: Tensor, d: int, index: Tensor, source, combine: str | None) -> Tensor:
    """out[.., j, ..] = x[.., j, ..] combined with source[.., 0, ..], where j is the index."""
    check_range(call, index, x.shape[d])
    given = source if isinstance(source, Tensor) else None
    nest = call.nest(x.shape, x, index, given)
    before = nest.read(x)
    value = nest.number(source, x.dtype) if given is None else nest.read(given)
    if combine is not None:
        before = before.widen()
        value = before.op(_PAIRED[combine], value.to(before.dtype))
    here = nest.read(index).to(dtypes.i64).eq(nest.position(d))
    return call.finish(nest, where(here, value, before).to(call.out.dtype))


def _scatter(call: Call, x: Tensor, d: int, index: Tensor, source, combine: str | None) -> Tensor:
    """out[.., index[i], ..] combined with source[i], for every i of the index's shape."""
    if x.rank == 0:
        raise NotLowered("a scatter into a scalar")
    _needs_float(call)
    if 0 in index.shape:
        return call.fresh(x)
    d = normal(d, x.rank)
    if _one_each(x, d, index, source):
        return _chosen(call, x, d, index, source, combine)
    _needs_atomics(call, combine, index.shape)
    return _narrowed(call, _combined(call, x, d, index, source, combine))


def _combined(call: Call, x: Tensor, d: int, index: Tensor, source, combine: str | None) -> Tensor:
    """The result of `_scatter`, of 16-bit floats in float32."""
    target, init = _start(call, x, wide=combine == "add")
    guarded = check_range(call, index, x.shape[d])
    free = [(source, [None] * x.rank)] if isinstance(source, Tensor) else []
    nest = call.nest(index.shape, index, extra=free, single=() if combine else (d,))
    given = nest.read(index)
    at = in_range(given, x.shape[d], wrap=False, guarded=guarded)
    guard = _guard(given, x.shape[d], guarded)
    every = [nest.at(k) for k in range(x.rank)]
    value = nest.read(source, every) if free else nest.number(source, target.dtype)
    places = [at if k == d else k for k in range(x.rank)]
    return _write(call, nest, target, init, places, value, combine, guard)


def _mean_or_sum(
    call: Call, x: Tensor, d: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    """Sums by index on a GPU that are divided by their numbers of terms, or that take the place of
    what is there where there are any."""
    spec = call.out
    if not (spec.dtype.is_float and spec.device.startswith("cuda")):
        raise NotLowered("numbers of terms of integers, or on a CPU")
    if reduce not in ("mean", "sum") or 0 in (x.rank, *index.shape):
        raise NotLowered(f"a reduction by index, by {reduce}")
    _needs_atomics(call, "add", index.shape)
    zeros = views.filled(0.0, spec.dtype, spec.device, spec.shape)
    total = _combined(call, x if include_self else zeros, d, index, source, "add")
    count = _counted(call, d, index)
    nest = call.nest(spec.shape, total, count, x)
    value, terms = nest.read(total), nest.read(count)
    if reduce == "mean":
        value = value / (terms + 1 if include_self else terms.maximum(1))
    if not include_self:
        value = where(terms > 0, value, nest.read(x).to(value.dtype))
    return call.finish(nest, value.to(spec.dtype))


def _counted(call: Call, d: int, index: Tensor) -> Tensor:
    """How often each element is met, as a float: once for all along which the index is the same."""
    spec = call.out
    same = [
        k != d and index.shape[k] == spec.shape[k] and not any(a.steps for a in index.dims[k])
        for k in range(index.rank)
    ]
    once = replace(index, dims=tuple(() if s else dim for s, dim in zip(same, index.dims)))
    shape = tuple(1 if s else n for s, n in zip(same, spec.shape))
    kind, strides = dtypes.compute(spec.dtype), views.contiguous_strides(shape)
    target = views.whole(call.graph.buffer("count", shape, kind, strides, spec.device))
    nest = Nest(call.graph, "count", once.shape, [aligned(once, once.rank)])
    given, extent = nest.read(once), spec.shape[d]
    places = [in_range(given, extent, wrap=False) if k == d else k for k in range(once.rank)]
    guard, one = is_inside(given, 0, extent), nest.number(1, kind)
    return _write(call, nest, target, 0.0, places, one, "add", guard)


def _guard(given: Expr, extent: Size, guarded: bool) -> Expr | None:
    """What must hold for a write, where it must be guarded."""
    return is_inside(given, 0, extent) if guarded else None


@lowers("aten.embedding_dense_backward.default")
def embedding_dense_backward(call: Call, grad, indices, rows, padding_idx, scale_grad_by_freq):
    """Sums of gradients by row of the table; the padding row gets none."""
    if scale_grad_by_freq:
        raise NotLowered("gradients scaled by frequency")
    if (known := _of_positions(call, grad, indices, rows, padding_idx)) is not None:
        return known
    if call.out.device.startswith("cuda"):
        count = product(indices.shape)
        known = all(isinstance(n, int) for n in (count, *call.out.shape))
        if known and count <= _FEW_INDICES and product(call.out.shape) <= _FEW_SUMS:
            return _compared(call, grad, indices, padding_idx)
        if not known or count <= _FEW_INDICES or rows == 1:
            return _library_gradient(call, grad, indices, rows, padding_idx)
        places = Places((indices,), (rows,), indices.shape, ignored=padding_idx)
        return sums_in_order(call, grad, places, 0)
    zeros = views.filled(0.0, call.out.dtype, call.out.device, call.out.shape)
    target, init = _start(call, zeros, wide=True)
    last = grad.rank - 1
    nest = call.nest(grad.shape, grad, extra=[(indices, range(last))])
    given = nest.read(indices, range(last)).to(dtypes.i64)
    row = in_range(given, rows, wrap=False)
    guard = None if padding_idx < 0 else given.ne(padding_idx)
    value = nest.read(grad).widen()
    return _narrowed(call, _write(call, nest, target, init, [row, last], value, "add", guard))


def _compared(call: Call, grad: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    """Each row's sum over all gradients, of those whose index it is."""
    rows, columns = call.out.shape
    count = product(indices.shape)
    grad, indices = call.reshaped(grad, (count, columns)), call.reshaped(indices, (count,))
    nest = call.nest((rows, columns, count), extra=[(grad, (2, 1)), (indices, (2,))])
    row = nest.position(0)
    own = nest.read(indices, (2,)).to(dtypes.i64).eq(row)
    if padding_idx >= 0:
        own = own & row.ne(padding_idx)
    value = where(own, nest.read(grad, (2, 1)).widen(), 0.0)
    return call.finish(nest, nest.reduce("sum", value, (2,)), (0, 1))


def _of_positions(call: Call, grad: Tensor, indices: Tensor, rows: Size, padding_idx: int):
    """The gradient of rows that lie in a row, in their order (positions); None of others."""
    ones = [d for d, size in enumerate(indices.shape) if size == 1]
    indices, grad = views.squeeze(indices, ones), views.squeeze(grad, ones)
    start, count, step = (indices.rank == 1 and run_of(indices)) or (0, 0, 0)
    within = step == 1 and isinstance(rows, int) and 0 <= start <= rows - count
    if not within or start <= padding_idx < start + count:
        return None
    nest = call.nest(call.out.shape, extra=[(grad, (None, 1))])
    at = nest.at(0) + -start
    guard = is_inside(nest.position(0), start, start + count)
    return call.finish(nest, nest.read(grad, [at, 1], guard=guard))


def _library_gradient(call: Call, grad: Tensor, indices: Tensor, rows, padding_idx) -> Tensor:
    """ATen's kernels for a GPU write wherever an index points: the forward has noticed one that is
    out of range, but has not stopped."""
    graph = call.graph
    if not is_within(graph, indices, 0, rows):
        nest = call.nest(indices.shape, indices)
        strides = views.contiguous_strides(indices.shape)
        spec = Spec(indices.shape, strides, indices.dtype, indices.device)
        indices = nest.store(in_range(nest.read(indices), rows, wrap=False), spec)
        nest.close()
    args = (window(graph, grad), window(graph, indices), rows, padding_idx, False)
    spec = call.out
    result = graph.buffer(call.name, spec.shape, spec.dtype, spec.strides, spec.device)
    name, target = graph.node_name(call.name), "aten.embedding_dense_backward.default"
    graph.emit(Extern(name, target, args, (), (result.name,), (), (graph.origin,)))
    return views.whole(result)


@lowers("aten.index_add.default")
def index_add(call: Call, x, d, index, source, *, alpha=1):
    _needs_float(call)
    _needs_atomics(call, "add", source.shape)
    if not x.rank:
        raise NotLowered("indices of a scalar")
    d = normal(d, x.rank)
    target, init = _start(call, x, wide=True)
    guarded = check_range(call, index, x.shape[d])
    nest = call.nest(source.shape, source, extra=[(index, [d])])
    given = nest.read(index, [d])
    at = in_range(given, x.shape[d], wrap=False, guarded=guarded)
    guard = _guard(given, x.shape[d], guarded)
    value = nest.read(source).to(target.dtype) * alpha
    places = [at if k == d else k for k in range(x.rank)]
    return _narrowed(call, _write(call, nest, target, init, places, value, "add", guard))


@lowers("aten.index_put.default")
def index_put(call: Call, x, indices, values, accumulate=False):
    """Accumulating, or writing one value everywhere: the order does not matter. A mask chooses
    between x and one value."""
    return _put(call, x, indices, values, accumulate, checked=True)


@lowers("aten._unsafe_index_put.default")
def unsafe_index_put(call: Call, x, indices, values, accumulate=False):
    """`index_put` with indices that a decomposition has made, in range: what it stands for in
    eager adds with atomics."""
    return _put(call, x, indices, values, accumulate, checked=False)


@lowers("aten.index_put_.default")
def index_put_in_place(call: Call, x, indices, values, accumulate=False):
    """Into the memory of an input, as whole as it came (a cache of keys). Which of several writes
    to one element is the last, is open on a GPU, in eager too unless asked otherwise."""
    buffer = call.graph.buffers.get(x.source)
    if buffer is None or x != views.whole(buffer) or accumulate or values.source == x.source:
        raise NotLowered("a write into a part, of what is there")
    layout = IndexLayout(x, indices)
    loose = buffer.device.startswith("cuda") and not torch.are_deterministic_algorithms_enabled()
    if not (layout.is_single or loose):
        raise NotLowered("the last of several writes to one element")
    if 0 in layout.shape():
        return x
    guarded = layout.check(call)
    nest = call.nest(layout.shape(), values, extra=layout.index_operands())
    guard = all_of(layout.guards(nest, guarded))
    _write(call, nest, x, None, layout.places(nest, guarded), nest.read(values), None, guard)
    call.graph.forget_copies_of(buffer.name)
    return x


def _put(call: Call, x: Tensor, indices, values: Tensor, accumulate: bool, checked: bool):
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == dtypes.b1:
        return _put_where(call, x, indices[0], values, accumulate)
    layout, spec = IndexLayout(x, indices), call.out
    shape, on_gpu = layout.shape(), spec.device.startswith("cuda")
    if on_gpu and 0 not in shape and (rows := rows_of(layout)) is not None:
        if checked:
            layout.check(call)
        return put_one_each(call, layout, rows, values, accumulate)
    if not accumulate and any(size != 1 for size in values.shape):
        raise NotLowered("the last of several writes to one element")
    _needs_float(call)
    if 0 in shape:  # a write of one value to one place would not run over the empty axis
        return call.fresh(x)
    if accumulate and not layout.is_single:
        if checked and spec.dtype.is_float and on_gpu:
            return _put_in_order(call, layout, values)
        _needs_atomics(call, "add", shape)
    target, init = _start(call, x, wide=accumulate)
    guarded = layout.check(call) if checked else ()
    nest = call.nest(shape, values, extra=layout.index_operands())
    places, guard = layout.places(nest, guarded), all_of(layout.guards(nest, guarded))
    value, combine = nest.read(values), "add" if accumulate else None
    return _narrowed(call, _write(call, nest, target, init, places, value, combine, guard))


def _put_in_order(call: Call, layout: IndexLayout, values: Tensor) -> Tensor:
    """The gradient of x[index]. Eager sorts for it."""
    x, first, indexed = layout.x, layout.first, layout.indexed
    if not isinstance(x.source, Fill) or x.source.value != 0 or not layout.together:
        raise NotLowered("sums that eager sorts for, to what is there or by indices that are apart")
    layout.check(call)
    shape = layout.shape()
    indices, sizes = (tuple(given[d] for d in indexed) for given in (layout.indices, x.shape))
    places = Places(indices, sizes, shape[first : first + layout.rank], wrap=True)
    return sums_in_order(call, views.expand(values, shape), places, first)


def _put_where(call: Call, x: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    if accumulate or any(size != 1 for size in values.shape):
        raise NotLowered("values by position in a mask")
    value = views.squeeze(values, range(values.rank))
    nest = call.nest(x.shape, x, value, extra=[(mask, range(mask.rank))])
    chosen = nest.read(mask, range(mask.rank))
    return call.finish(nest, where(chosen, nest.read(value), nest.read(x)))
