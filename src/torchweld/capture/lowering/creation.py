"""Tensors made from nothing: constants and ranges take no memory until something needs an
address."""

from __future__ import annotations

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir import views
from torchweld.ir.size import Poly
from torchweld.ir.views import Atom, Iota, Tensor


def constant(call: Call, value) -> Tensor:
    """The result of a call, all of which is one number."""
    spec = call.out
    if spec.dtype.kind == "opaque" or isinstance(value, Tensor):
        raise NotLowered("a constant of this dtype")
    if isinstance(value, Poly):
        return _stored_size(call, value)
    return views.filled(_as(value, spec.dtype), spec.dtype, spec.device, spec.shape)


def _as(value, dtype: dtypes.DType):
    return float(value) if dtype.is_float else bool(value) if dtype == dtypes.b1 else int(value)


def _stored_size(call: Call, value: Poly) -> Tensor:
    nest = call.nest(call.out.shape)
    return call.finish(nest, nest.number(value, call.out.dtype))


@lowers("aten.full.default", "aten.full_like.default")
def full(call: Call, _, value, **__):
    return constant(call, value)


@lowers("aten.new_full.default")
def new_full(call: Call, _, size, value, **__):
    return constant(call, value)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(call: Call, value, **_):
    return constant(call, value)


@lowers(
    "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default",
    "aten._efficientzerotensor.default",
)  # fmt: skip
def zeros(call: Call, *_, **__):
    """Also a tangent of `torch.func.jvp` that is zero: of ATen's there is no memory to read."""
    return constant(call, 0)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(call: Call, *_, **__):
    return constant(call, 1)


@lowers("aten.fill.Scalar", "aten.fill.Tensor")
def fill(call: Call, x, value):
    if isinstance(value, Tensor):
        nest = call.nest(call.out.shape, value)
        return call.finish(nest, nest.read(value).to(call.out.dtype))
    return constant(call, value)


@lowers("aten.arange.default")
def arange(call: Call, end, **_):
    return _range(call, 0, 1)


@lowers("aten.arange.start")
def arange_start(call: Call, start, end, **_):
    return _range(call, start, 1)


@lowers("aten.arange.start_step")
def arange_step(call: Call, start, end, step=1, **_):
    return _range(call, start, step)


@lowers("prims.iota.default")
def iota(call: Call, length, *, start, step, **_):
    return _range(call, start, step)


def _range(call: Call, start, step) -> Tensor:
    """Integers: an index map. Floats: start + i * step, in the compute dtype."""
    spec = call.out
    if isinstance(start, float) or isinstance(step, float) or not spec.dtype.is_integral:
        return _float_range(call, start, step)
    (count,) = spec.shape
    dims = ((Atom(count, ((0, step),)),),) if count != 1 else ((),)
    return Tensor(Iota(), spec.dtype, spec.device, dims, (start,))


def _float_range(call: Call, start, step) -> Tensor:
    nest = call.nest(call.out.shape)
    index = nest.position(0).to(call.compute())
    value = index if step == 1 else index * step
    return call.finish(nest, value if start == 0 else value + start)


@lowers("aten.eye.default", "aten.eye.m")
def eye(call: Call, *_, **__):
    nest = call.nest(call.out.shape)
    return call.finish(nest, nest.position(0).eq(nest.position(1)).to(call.out.dtype))
