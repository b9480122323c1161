"""Views, which cost nothing, and what moves data: cat, pad, scatter into a slice, repeat, roll."""

from __future__ import annotations

from dataclasses import replace

from torchweld.capture.lowering.call import Call, normal, normal_dims
from torchweld.capture.lowering.expr import Expr
from torchweld.capture.lowering.nest import Spec, stored
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir import views
from torchweld.ir.size import Size, divide, product
from torchweld.ir.views import Tensor

# -- views


@lowers(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_alias.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
)
def view(call: Call, x, *_):
    return call.reshaped(x, call.out.shape)


@lowers("aten.permute.default")
def permute(call: Call, x, order):
    return views.permute(x, [normal(d, x.rank) for d in order])


@lowers("aten.t.default", "aten.numpy_T.default", "aten.mT.default")
def t(call: Call, x):
    return x if x.rank < 2 else transpose(call, x, -2, -1)


@lowers("aten.transpose.int", "aten.swapaxes.default")
def transpose(call: Call, x, d1, d2):
    order = list(range(x.rank))
    if order:
        d1, d2 = normal(d1, x.rank), normal(d2, x.rank)
        order[d1], order[d2] = d2, d1
    return views.permute(x, order)


@lowers(
    "aten.expand.default",
    "aten.expand_as.default",
    "aten.broadcast_to.default",
)
def expand(call: Call, x, *_, implicit=False):
    return views.expand(x, call.out.shape)


@lowers("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(call: Call, x, dims=None):
    wanted = (
        normal_dims(dims, x.rank)
        if dims is not None and dims != ()
        else range(x.rank)
        if dims is None
        else ()
    )
    return views.squeeze(x, [d for d in wanted if d < x.rank and x.shape[d] == 1])


@lowers("aten.unsqueeze.default")
def unsqueeze(call: Call, x, d):
    return views.unsqueeze(x, d if d >= 0 else d + x.rank + 1)


@lowers("aten.slice.Tensor")
def slice_(call: Call, x, d=0, start=None, end=None, step=1):
    d = normal(d, x.rank)
    return _slice(call, x, d, clamped(call, start, x.shape[d]), call.out.shape[d], step)


@lowers("aten.narrow.default")
def narrow(call: Call, x, d, start, length):
    d = normal(d, x.rank)
    return _slice(call, x, d, clamped(call, start, x.shape[d]), length, 1)


def _slice(call: Call, x: Tensor, d: int, start: Size, length: Size, step: int = 1) -> Tensor:
    found = views.slice_(x, d, start, length, step)
    return (
        found if found is not None else views.slice_(stored(call.graph, x), d, start, length, step)
    )


def clamped(call: Call, index: Size | None, size: Size) -> Size:
    """A start or end as Python's slices take it: negative from the end, and inside [0, size]."""
    if index is None:
        return 0
    hint = call.graph.sizes.hint
    if hint(index) < 0:
        index = index + size
    if hint(index) < 0:
        return 0
    return size if hint(index) > hint(size) else index


@lowers("aten.select.int")
def select(call: Call, x, d, index):
    d = normal(d, x.rank)
    if call.graph.sizes.hint(index) < 0:
        index = index + x.shape[d]
    found = views.select(x, d, index)
    return found if found is not None else views.select(stored(call.graph, x), d, index)


@lowers(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.split.sizes",
    "aten.tensor_split.sections",
    "aten.unsafe_split.Tensor",
)
def split(call: Call, x, _, d=0):
    d, start, parts = normal(d, x.rank), 0, []
    for spec in call.specs:
        parts.append(_slice(call, x, d, start, spec.shape[d]))
        start = start + spec.shape[d]
    return tuple(parts)


@lowers("aten.unbind.int")
def unbind(call: Call, x, d=0):
    return tuple(select(call, x, d, k) for k in range(len(call.specs)))


@lowers("aten.diagonal.default")
def diagonal(call: Call, x, offset=0, dim1=0, dim2=1):
    places, length = (normal(dim1, x.rank), normal(dim2, x.rank)), call.out.shape[-1]
    found = views.diagonal(x, offset, *places, length)
    return (
        found
        if found is not None
        else views.diagonal(stored(call.graph, x), offset, *places, length)
    )


@lowers("aten.unfold.default")
def unfold(call: Call, x, d, size, step):
    if not x.rank:
        return views.expand(x, call.out.shape)
    d = normal(d, x.rank)
    args = (d, call.out.shape[d], size, step)
    found = views.unfold(x, *args)
    return found if found is not None else views.unfold(stored(call.graph, x), *args)


@lowers("aten.as_strided.default")
def as_strided(call: Call, x, shape, strides, offset=None):
    """On a whole, unchanged buffer, or all of a new row: eager means the memory, which other views
    do not have. What eager has copied is copied as it lies there."""
    if x.copied and (order := _whole_row(x, shape, strides, offset)) is not None:
        row = call.reshaped(x, [shape[d] for d in order])
        return views.permute(row, [order.index(d) for d in range(len(shape))])
    x = _as_it_lies(call, x) if x.copied else x
    buffer = call.graph.buffers.get(x.source) if x.buffer else None
    window = call.graph.view_of(x)
    if window is None or window.offset != 0:
        raise NotLowered("as_strided of a view")
    found = views.strided(buffer, shape, strides, offset or 0)
    if found is None:
        raise NotLowered("overlapping windows")
    return found


def _as_it_lies(call: Call, x: Tensor) -> Tensor:
    """A copy with the strides of eager's, which begins where its memory does."""
    fake = call.given[0]
    strides = call.graph.sizes.many(fake.stride())
    made = stored(call.graph, x, strides)
    if fake.storage_offset() != 0 or call.graph.buffers[made.source].strides != strides:
        raise NotLowered("a copy that lies in memory in another way")
    return made


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(call: Call, x, part, shape, strides, offset=None):
    """Where the window is all of a row: the gradient of what was changed in place."""
    order = _whole_row(x, shape, strides, offset)
    if order is None:
        raise NotLowered("a window that leaves something of the memory around it")
    return call.fresh(call.reshaped(views.permute(part, order), x.shape))


def _whole_row(x: Tensor, shape, strides, offset) -> list[int] | None:
    """The dimensions of a window, outermost first, if it is all elements of x, a row of memory."""
    if x.rank != 1 or offset or not all(isinstance(n, int) for n in (*shape, *strides)):
        return None
    order = sorted(range(len(shape)), key=lambda d: (strides[d], shape[d]), reverse=True)
    sizes, steps = [shape[d] for d in order], [strides[d] for d in order]
    dense = views.same_layout(sizes, steps, views.contiguous_strides(sizes))
    return order if dense and product(sizes) == x.shape[0] else None


@lowers("aten.flip.default")
def flip(call: Call, x, dims):
    return call.fresh(views.flip(x, normal_dims(dims, x.rank) if dims else ()))


@lowers(
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten.lift.default",
    "prims.view_of.default",
    "aten.resolve_conj.default",
)
def alias(call: Call, x):
    return x


# -- movement


@lowers("aten.cat.default", "aten.concat.default")
def cat(call: Call, tensors, d=0):
    """One nest over the result: each part behind a guard on the position."""
    shape = call.out.shape
    d = normal(d, len(shape))
    parts = [t for t in tensors if not (t.rank == 1 and t.shape[0] == 0 and len(shape) > 1)]
    parts = [t for t in parts if t.shape[d] != 0] or parts[:1]
    tail = _common_tail(parts, d)
    inner = product(tail)
    if tail:
        parts = [views.reshape(t, _opened(t.shape, d, inner, tail)) for t in parts]
    strides = views.contiguous_strides(tail)
    spec = replace(
        call.out,
        shape=_opened(shape, d, inner, tail),
        strides=(
            *call.out.strides[:d],
            *(call.out.strides[d] * s for s in (inner, *strides)),
            *call.out.strides[d + 1 :],
        ),
    )
    return call.reshaped(_joined(call, parts, d, spec), shape)


def _common_tail(parts: list[Tensor], d: int) -> tuple[Size, ...]:
    """The inner extents of dimension d that every part can be split into, so that the joint is
    between whole blocks;
    () where there are none (a part in pieces is then copied)."""
    tails = [tuple(atom.extent for atom in t.dims[d][1:]) for t in parts]
    tail = max(tails, key=len)
    inner = product(tail)
    for t in parts:
        if (
            divide(t.shape[d], inner) is None
            or views.reshape(t, _opened(t.shape, d, inner, tail)) is None
        ):
            return ()
    return tail


def _opened(shape, d: int, inner: Size, tail) -> tuple[Size, ...]:
    """Dimension d as (d / inner, *tail)."""
    return (*shape[:d], divide(shape[d], inner), *tail, *shape[d + 1 :])


def _joined(call: Call, parts: list[Tensor], d: int, spec: Spec) -> Tensor:
    rank = len(spec.shape)
    places = tuple(None if k == d else k for k in range(rank))
    nest = call.nest(spec.shape, extra=[(t, places) for t in parts])
    at, start, result = nest.position(d), 0, None
    for part in parts:
        here = tuple(nest.at(k) + (start * -1) if k == d else k for k in range(rank))
        end = start + part.shape[d]
        inside = _between(at, start, end, spec.shape[d])
        value = nest.read(part, here, guard=inside).to(spec.dtype)
        result = value if result is None else inside.where(value, result)
        start = end
    result = nest.store(result, spec)
    nest.close()
    return result


def _between(at: Expr, start: Size, end: Size, size: Size) -> Expr | None:
    """start <= at < end, less the half that always holds; None if both do."""
    if start == 0:
        return None if end == size else at < end
    return at >= start if end == size else (at >= start) & (at < end)


@lowers("aten.stack.default")
def stack(call: Call, tensors, d=0):
    return cat(call, [views.unsqueeze(t, normal(d, len(call.out.shape))) for t in tensors], d)


@lowers("aten.constant_pad_nd.default")
def constant_pad_nd(call: Call, x, pad, value=0):
    """Reads outside the tensor give `value`; negative padding cuts."""
    shape = call.out.shape
    before = {x.rank - 1 - k: pad[2 * k] for k in range(len(pad) // 2)}
    after = {x.rank - 1 - k: pad[2 * k + 1] for k in range(len(pad) // 2)}
    padded = [d for d in before if before[d] != 0 or after[d] != 0]
    nest = call.nest(shape, extra=[(x, tuple(None if d in padded else d for d in range(x.rank)))])
    inside = nest.number(True, dtypes.b1)
    for d in padded:
        at = nest.position(d)
        if before[d] != 0:
            inside = inside & (at >= before[d])
        if after[d] != 0:
            inside = inside & (at < before[d] + x.shape[d])
    here = [nest.at(d) + (before[d] * -1) if d in padded else d for d in range(x.rank)]
    return call.finish(nest, nest.read(x, here, guard=inside, fill=value))


def _inserted(
    call: Call, x: Tensor, part: Tensor, d: int, start: Size, length: Size, step: int
) -> Tensor:
    """x with part[..] in place of x[.., start : start + length * step : step, ..]."""
    places = tuple(range(x.rank))
    nest = call.nest(x.shape, x, extra=[(part, tuple(None if k == d else k for k in places))])
    at = nest.position(d)
    inside = (at >= start) & (at < start + length * step)
    if step == 1:
        there = nest.at(d) + (start * -1)
    else:
        inside = inside & (at - start).remainder(step).eq(0)
        there = (at - start).floor_div(step)
    new = nest.read(part, tuple(there if k == d else k for k in places), guard=inside)
    return call.finish(nest, inside.where(new, nest.read(x)))


@lowers("aten.slice_scatter.default")
def slice_scatter(call: Call, x, part, d=0, start=None, end=None, step=1):
    d = normal(d, x.rank)
    return _inserted(call, x, part, d, clamped(call, start, x.shape[d]), part.shape[d], step)


@lowers("aten.select_scatter.default")
def select_scatter(call: Call, x, part, d, index):
    d = normal(d, x.rank)
    if call.graph.sizes.hint(index) < 0:
        index = index + x.shape[d]
    return _inserted(call, x, views.unsqueeze(part, d), d, index, 1, 1)


@lowers("aten.diagonal_scatter.default")
def diagonal_scatter(call: Call, x, part, offset=0, dim1=0, dim2=1):
    d1, d2 = normal(dim1, x.rank), normal(dim2, x.rank)
    others = [d for d in range(x.rank) if d not in (d1, d2)]
    nest = call.nest(x.shape, x, extra=[(part, (*others, None))])
    inside = (nest.position(d1) + offset).eq(nest.position(d2))
    along = nest.at(d1) if offset >= 0 else nest.at(d2)
    new = nest.read(part, (*others, along), guard=inside)
    return call.finish(nest, inside.where(new, nest.read(x)))


# -- gradients of views: zeros with the gradient in a window


@lowers("aten.slice_backward.default")
def slice_backward(call: Call, grad, sizes, d, start, end, step):
    return slice_scatter(call, _zeros(call, grad), grad, d, start, end, step)


@lowers("aten.select_backward.default")
def select_backward(call: Call, grad, sizes, d, index):
    return select_scatter(call, _zeros(call, grad), grad, d, index)


@lowers("aten.diagonal_backward.default")
def diagonal_backward(call: Call, grad, sizes, offset, dim1, dim2):
    return diagonal_scatter(call, _zeros(call, grad), grad, offset, dim1, dim2)


def _zeros(call: Call, grad: Tensor) -> Tensor:
    return views.filled(0, grad.dtype, grad.device, call.out.shape)


@lowers("aten.repeat.default", "aten.tile.default")
def repeat(call: Call, x, counts):
    """Broadcast dimensions beside the tensor's own, then merged."""
    shape = (1,) * (len(call.out.shape) - x.rank) + x.shape
    counts = (1,) * (len(shape) - len(counts)) + tuple(counts)
    beside = tuple(n for size in shape for n in (1, size))
    copies = views.expand(
        call.reshaped(x, beside), tuple(n for c, s in zip(counts, shape) for n in (c, s))
    )
    return call.fresh(call.reshaped(copies, call.out.shape))


@lowers("aten.roll.default")
def roll(call: Call, x, shifts, dims=()):
    """out[i] = x[i - shift], wrapped: two guarded reads per rolled dimension."""
    if not dims:
        flat = call.reshaped(x, (product(x.shape),))
        return call.fresh(call.reshaped(_rolled(call, flat, 0, shifts[0]), x.shape))
    for d, shift in zip(dims, shifts):
        x = _rolled(call, x, normal(d, x.rank), shift)
    return call.fresh(x)


def _rolled(call: Call, x: Tensor, d: int, shift: int) -> Tensor:
    size = x.shape[d]
    if not isinstance(size, int):
        raise NotLowered("roll along a symbolic dimension")
    shift = shift % size if size else 0
    if shift == 0:
        return x
    nest = call.nest(x.shape, extra=[(x, tuple(None if k == d else k for k in range(x.rank)))])
    first = nest.position(d) < shift
    tail = nest.read(
        x, tuple(nest.at(d) + (size - shift) if k == d else k for k in range(x.rank)), guard=first
    )
    head = nest.read(
        x,
        tuple(nest.at(d) + -shift if k == d else k for k in range(x.rank)),
        guard=first.logical_not(),
    )
    spec = Spec(x.shape, views.contiguous_strides(x.shape), x.dtype, x.device)
    result = nest.store(first.where(tail, head), spec)
    nest.close()
    return result
