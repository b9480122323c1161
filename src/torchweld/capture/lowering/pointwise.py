"""Pointwise operations: a table from overload to scalar expression."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torchweld.capture.lowering.call import Call, need_arithmetic, normal, promoted
from torchweld.capture.lowering.creation import constant
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.registry import ROWS, lowers
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.errors import NotLowered
from torchweld.ir import affine, views
from torchweld.ir.scalar import BITS
from torchweld.ir.simplify import holds
from torchweld.ir.size import Poly
from torchweld.ir.views import Tensor


def _apply(call: Call, function: Callable, dtype: DType, args, kwargs, exact: bool) -> Tensor:
    """One nest: tensor arguments read in `dtype`, other arguments as they are."""
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    need_arithmetic(call.out.dtype, *(t.dtype for t in tensors))
    nest = call.nest(call.out.shape, *tensors)

    def given(arg):
        if isinstance(arg, Tensor):
            return nest.read(arg, exact=exact).to(dtype)
        return nest.number(arg, dtype) if isinstance(arg, Poly) else arg

    result = function(*map(given, args), **{k: given(v) for k, v in kwargs.items()})
    if not isinstance(result, Expr):
        result = nest.number(result, dtype)
    return call.finish(nest, result)


def pointwise(*overloads: str, exact: bool = False) -> Callable:
    """A row computed in the result's compute dtype. `exact`: operands are taken as stored (they
    decide something discrete)."""

    def register(function: Callable) -> Callable:
        @lowers(*overloads)
        def row(call: Call, *args, **kwargs):
            return _apply(call, function, call.compute(), args, kwargs, exact)

        return function

    return register


def comparison(*overloads: str) -> Callable:
    """A row computed in the operands' common dtype, on values as stored."""

    def register(function: Callable) -> Callable:
        @lowers(*overloads)
        def row(call: Call, *args, **kwargs):
            return _apply(call, function, dtypes.compute(promoted(args)), args, kwargs, True)

        return function

    return register


def _truth(x) -> Expr | bool:
    if not isinstance(x, Expr):
        return bool(x)
    return x if x.dtype == dtypes.b1 else x.ne(0)


def _lift(a, b) -> tuple[Expr, Expr]:
    return (a, a.lift(b)) if isinstance(a, Expr) else (b.lift(a), b)


def _both(name: str) -> Callable:
    def apply(a, b):
        a, b = _lift(a, b)
        return a.op(name, b)

    return apply


def _of_gpus(name: str, call: Call, x, *others):
    """ATen's own for CPUs are vectorised: on one thread erfc of 512 x 2048 takes 1.9 ms, 12.5 with
    the C library's, lgamma 6.5 and 16 to 27."""
    if not call.out.device.startswith("cuda"):
        raise NotLowered(f"{name} is vectorised by ATen alone")
    if name == "nextafter" and call.out.dtype.is_low_precision:
        raise NotLowered("the neighbour in 16 bits is another")
    return _apply(call, lambda a, *b: a.op(name, *b), call.compute(), (x, *others), {}, False)


# -- one argument, or two, straight from the scalar table

_UNARY = """
    neg sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos
    atan sinh cosh tanh asinh acosh atanh erf sigmoid
"""
_OF_GPUS = "erfc erfinv lgamma nextafter"
_ROUNDING = "ceil floor trunc"
_COMPARE = "eq ne lt le gt ge"
_BINARY = {
    "maximum.default": "maximum", "minimum.default": "minimum", "fmax.default": "fmax",
    "fmin.default": "fmin", "atan2.default": "atan2", "copysign.Tensor": "copysign",
    "copysign.Scalar": "copysign", "pow.Tensor_Tensor": "pow", "pow.Scalar": "pow",
    "hypot.default": "hypot",
}  # fmt: skip
_EXACT_BINARY = {
    "remainder.Tensor": "remainder", "remainder.Scalar": "remainder",
    "remainder.Scalar_Tensor": "remainder", "fmod.Tensor": "fmod", "fmod.Scalar": "fmod",
    "floor_divide.default": "floor_div", "floor_divide.Scalar": "floor_div",
    "bitwise_and.Tensor": "bit_and", "bitwise_and.Scalar": "bit_and", "__and__.Tensor": "bit_and",
    "bitwise_or.Tensor": "bit_or", "bitwise_or.Scalar": "bit_or", "__or__.Tensor": "bit_or",
    "bitwise_xor.Tensor": "bit_xor", "bitwise_xor.Scalar": "bit_xor",
    "bitwise_left_shift.Tensor": "shl", "bitwise_left_shift.Tensor_Scalar": "shl",
    "__lshift__.Scalar": "shl", "bitwise_right_shift.Tensor": "shr",
    "bitwise_right_shift.Tensor_Scalar": "shr", "__rshift__.Scalar": "shr",
    "__lshift__.Tensor": "shl", "__rshift__.Tensor": "shr",
    "bitwise_and.Scalar_Tensor": "bit_and", "bitwise_or.Scalar_Tensor": "bit_or",
    "bitwise_xor.Scalar_Tensor": "bit_xor", "bitwise_left_shift.Scalar_Tensor": "shl",
    "bitwise_right_shift.Scalar_Tensor": "shr",
}  # fmt: skip

for _name in _UNARY.split():
    pointwise(f"aten.{_name}.default")(lambda x, _name=_name: x.op(_name))
pointwise("aten._neg_view.default")(lambda x: x.op("neg"))
pointwise("aten.sign.default", "aten.sgn.default")(
    lambda x: x if x.dtype == dtypes.b1 else x.op("sign")
)
pointwise("aten.abs.default")(lambda x: x if x.dtype == dtypes.b1 else x.op("abs"))
for _name in _ROUNDING.split():
    pointwise(f"aten.{_name}.default", exact=True)(
        lambda x, _name=_name: x.op(_name) if x.dtype.is_float else x
    )
for _name in _OF_GPUS.split():
    lowers(f"aten.{_name}.default")(partial(_of_gpus, _name))
for _overload, _name in _BINARY.items():
    pointwise(f"aten.{_overload}")(_both(_name))
for _overload, _name in _EXACT_BINARY.items():
    pointwise(f"aten.{_overload}", exact=True)(_both(_name))
for _name in _COMPARE.split():
    comparison(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_both(_name))


# -- arithmetic


@pointwise("aten.add.Tensor", "aten.add.Scalar")
def add(a, b, alpha=1):
    return _both("bit_or" if _is_bool(a, b) else "add")(a, _times(b, alpha))


@pointwise("aten.sub.Tensor", "aten.sub.Scalar")
def sub(a, b, alpha=1):
    return _both("sub")(a, _times(b, alpha))


@pointwise("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(a, b, alpha=1):
    return _both("sub")(b, _times(a, alpha))


@pointwise("aten.mul.Tensor", "aten.mul.Scalar")
def mul(a, b):
    return _both("bit_and" if _is_bool(a, b) else "mul")(a, b)


@lowers(
    "aten.div.Tensor",
    "aten.div.Scalar",
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    "aten.true_divide.Tensor",
)
def div(call: Call, a, b, rounding_mode=None):
    factor = call.reciprocal(b) if rounding_mode is None else None
    if factor is not None:
        return _apply(call, _both("mul"), call.compute(), (a, factor), {}, exact=False)
    name = {None: "div", "floor": "floor_div", "trunc": "trunc_div"}[rounding_mode]
    return _apply(call, _both(name), call.compute(), (a, b), {}, rounding_mode is not None)


def _is_bool(a, b) -> bool:
    return (a if isinstance(a, Expr) else b).dtype == dtypes.b1


def _times(x, factor):
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


pointwise("aten.square.default")(lambda x: x * x)
pointwise("aten.relu.default")(lambda x: x.maximum(0))
pointwise("aten.relu6.default")(lambda x: x.maximum(0).minimum(6))
pointwise("aten.positive.default")(lambda x: x)
pointwise("aten.addcmul.default")(lambda x, a, b, value=1: x + _times(a * b, value))
pointwise("prims.fma.default")(lambda a, b, c: a * b + c)
pointwise("aten.addcdiv.default")(lambda x, a, b, value=1: x + _times(a / b, value))
pointwise("aten.deg2rad.default")(lambda x: x * (math.pi / 180))
pointwise("aten.rad2deg.default")(lambda x: x * (180 / math.pi))
pointwise("aten.logit.default")(lambda x, eps=None: _logit(x, eps))
pointwise("aten.frac.default", exact=True)(lambda x: x - x.trunc())


def _logit(x: Expr, eps) -> Expr:
    z = x if eps is None else x.maximum(eps).minimum(1 - eps)
    return (z / (1 - z)).log()


@lowers("aten.round.default", "aten.round.decimals")
def round_(call: Call, x, decimals=0):
    if decimals:
        raise NotLowered("rounding to decimals")
    return _apply(
        call, lambda v: v.round() if v.dtype.is_float else v, call.compute(), (x,), {}, True
    )


@pointwise("aten.pow.Tensor_Scalar")
def pow_scalar(x, exponent):
    """x ** n; small powers as ATen writes them."""
    small = {
        0.5: lambda: x.sqrt(), 2: lambda: x * x, 3: lambda: x * x * x, -0.5: lambda: x.rsqrt(),
        -1: lambda: x.reciprocal(), -2: lambda: (x * x).reciprocal(), 1: lambda: x,
    }  # fmt: skip
    if exponent in small and (x.dtype.is_float or exponent in (1, 2, 3)):
        return small[exponent]()
    return x.op("pow", exponent)


def pow_of(call: Call, x, exponent):
    """x ** exponent, where either may be a number."""
    overload = "Tensor_Tensor" if isinstance(exponent, Tensor) else "Tensor_Scalar"
    return ROWS[f"aten.pow.{overload}"](call, x, exponent)


@lowers("aten.linalg_cross.default")
def cross(call: Call, x, y, *, dim=-1):
    """Component k is x[k+1] y[k+2] - x[k+2] y[k+1], modulo 3. All three are written at each point,
    from elements at places that are known, and one chosen: a reader at a known place needs but one,
    and `passes/stacks.py` makes them together."""
    need_arithmetic(call.out.dtype, x.dtype, y.dtype)
    shape = call.out.shape
    d = normal(dim, len(shape))
    places = tuple(None if k == d else k for k in range(len(shape)))
    nest = call.nest(shape, extra=[(x, places), (y, places)])

    def component(of: Tensor, k: int) -> Expr:
        here = [affine.constant(k % 3) if place is None else place for place in places]
        return nest.read(of, here).to(call.compute())

    def product(k: int) -> Expr:
        ahead, behind = (k + 1, k + 2), (k + 2, k + 1)
        first, second = (component(x, a) * component(y, b) for a, b in (ahead, behind))
        return first - second

    at = nest.position(d)
    chosen = where(at.eq(0), product(0), where(at.eq(1), product(1), product(2)))
    return call.finish(nest, chosen)


@pointwise("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(a, b, weight):
    """The form that is exact at both ends, chosen as ATen chooses it."""
    if isinstance(weight, Expr):
        return where(weight.abs() < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight))
    return a + weight * (b - a) if abs(weight) < 0.5 else b - (b - a) * (1 - weight)


@pointwise("aten.clamp.default", "aten.clamp.Tensor")
def clamp(x, min=None, max=None):
    x = x if min is None else x.maximum(min)
    return x if max is None else x.minimum(max)


pointwise("aten.clamp_min.default", "aten.clamp_min.Tensor")(lambda x, low: x.maximum(low))
pointwise("aten.clamp_max.default", "aten.clamp_max.Tensor")(lambda x, high: x.minimum(high))


# -- truth

comparison("aten.isnan.default")(lambda x: x.isnan() if x.dtype.is_float else x.ne(x))
comparison("aten.isinf.default")(lambda x: x.isinf() if x.dtype.is_float else x.ne(x))
comparison("aten.isfinite.default")(lambda x: x.abs() < math.inf if x.dtype.is_float else x.eq(x))
comparison("aten.logical_not.default")(lambda x: _truth(x).logical_not())
comparison("aten.logical_and.default")(lambda a, b: _truth(a) & _truth(b))
comparison("aten.logical_or.default")(lambda a, b: _truth(a) | _truth(b))
comparison("aten.logical_xor.default")(lambda a, b: _truth(a).bit_xor(_truth(b)))
pointwise("aten.bitwise_not.default")(
    lambda x: x.logical_not() if x.dtype == dtypes.b1 else x.bit_not()
)


@comparison("aten.signbit.default")
def signbit(x):
    """Of a zero and of NaN, too."""
    return x.lift(1).op("copysign", x) < 0 if x.dtype.is_float else x < 0


# -- selection: the condition keeps its own dtype


def _choose(call: Call, condition: Tensor, yes, no) -> Tensor:
    nest = call.nest(call.out.shape, *(t for t in (condition, yes, no) if isinstance(t, Tensor)))
    dtype = call.out.dtype if call.out.dtype.is_float8 else call.compute()
    chosen = [
        nest.read(v).to(dtype) if isinstance(v, Tensor) else nest.number(v, dtype)
        for v in (yes, no)
    ]
    return call.finish(nest, where(_truth(nest.read(condition, exact=True)), *chosen))


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where_(call: Call, condition, yes, no):
    return _choose(call, condition, yes, no)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(call: Call, x, mask, value):
    return _choose(call, mask, value, x)


# -- conversion and copying


@lowers("aten._to_copy.default", "prims.convert_element_type.default", "aten.to.dtype")
def convert(call: Call, x, *_, **kwargs):
    """A cast. A user's narrowing keeps its rounding when fused, and so does what comes back through
    it as a gradient. Joint graphs have numbers, too, where a model casts a constant."""
    if not isinstance(x, Tensor):
        return constant(call, x)
    if x.device != call.out.device:
        raise NotLowered("a copy between devices")
    if x.dtype == call.out.dtype:
        return same(call, x)
    return _cast(call, x)


def _cast(call: Call, x: Tensor) -> Tensor:
    if "opaque" in (x.dtype.kind, call.out.dtype.kind):
        raise NotLowered("no conversion of this dtype")
    nest = call.nest(call.out.shape, x)
    narrows = x.dtype.is_float and call.out.dtype.is_float and not holds(call.out.dtype, x.dtype)
    asked = not call.graph.is_inner_cast
    exact = not call.out.dtype.is_float or (call.graph.of_gradient and asked)
    value = nest.read(x, exact=exact)
    return call.finish(nest, value.to(call.out.dtype, must_round=narrows and asked))


@lowers("aten.view.dtype", "aten.view_copy.dtype")
def as_bits(call: Call, x, dtype):
    """The same bits as numbers of another type of the same size."""
    source, target = x.dtype, call.out.dtype
    whole, number = (BITS.get(f"{d}_bits", (d, d))[1] for d in (source, target))
    if source.bits != target.bits or not (whole.is_integral and number.is_integral):
        raise NotLowered("a view as another type")
    nest = call.nest(call.out.shape, x)
    value = nest.read(x, exact=True)
    value = (value.bits() if source.is_float else value).to(number)
    return call.finish(nest, value.of_bits(target) if target.is_float else value)


@lowers("aten.clone.default", "aten.lift_fresh_copy.default", "aten.contiguous.default")
def same(call: Call, x, **_):
    return _cast(call, x) if x.source in call.graph.mutated else call.fresh(x)


@lowers("aten.copy.default")
def copy(call: Call, target, source, non_blocking=False):
    return _cast(call, source)


@lowers("aten.copy_.default")
def copy_in_place(call: Call, target, source, non_blocking=False):
    """A store into the memory of an input, as whole as it came."""
    buffer = call.graph.buffers.get(target.source)
    if buffer is None or target != views.whole(buffer) or source.source == target.source:
        raise NotLowered("a copy into a part, or onto itself")
    if "opaque" in (source.dtype.kind, buffer.dtype.kind):
        raise NotLowered("a copy that ATen makes")
    nest = call.nest(target.shape, source)
    value = nest.read(source).to(buffer.dtype, must_round=True)
    nest.put(buffer, tuple(nest.at(d) for d in range(target.rank)), value)
    nest.close()
    call.graph.forget_copies_of(buffer.name)
    return target
