"""Reductions, scans, softmax and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchweld.capture.lowering.call import Call, kept, need_arithmetic, normal, normal_dims
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir.views import Tensor


def _over(call: Call, x: Tensor) -> Nest:
    need_arithmetic(x.dtype, call.out.dtype)
    return call.nest(x.shape, x)


def _simple(
    call: Call, monoid: str, x: Tensor, dims, keepdim: bool, finish=lambda value, nest, dims: value
) -> Tensor:
    """A reduction by one monoid, in the result's compute dtype."""
    dims = normal_dims(dims, x.rank)
    nest = _over(call, x)
    total = nest.reduce(monoid, nest.read(x).to(call.compute()), dims)
    return call.finish(nest, finish(total, nest, dims), kept(x.rank, dims, keepdim))


@lowers("aten.sum.dim_IntList", "aten.sum.default", "prims.sum.default")
def sum_(call: Call, x, dims=None, keepdim=False, *, dtype=None):
    return _simple(call, "sum", x, dims, keepdim)


@lowers("aten.mean.dim", "aten.mean.default")
def mean(call: Call, x, dims=None, keepdim=False, *, dtype=None):
    def share(total: Expr, nest: Nest, over: Sequence[int]) -> Expr:
        count = nest.count(over)
        factor = call.reciprocal(count)
        return total / count if factor is None else total * factor

    return _simple(call, "sum", x, dims, keepdim, share)


@lowers("aten.prod.dim_int", "aten.prod.default")
def prod(call: Call, x, dims=None, keepdim=False, *, dtype=None):
    return _simple(call, "prod", x, dims, keepdim)


@lowers("aten.amax.default")
def amax(call: Call, x, dims=(), keepdim=False):
    return _extreme(call, "max", x, dims, keepdim)


@lowers("aten.amin.default")
def amin(call: Call, x, dims=(), keepdim=False):
    return _extreme(call, "min", x, dims, keepdim)


@lowers("aten.max.default")
def max_(call: Call, x):
    return _extreme(call, "max", x, None, False)


@lowers("aten.min.default")
def min_(call: Call, x):
    return _extreme(call, "min", x, None, False)


def _extreme(call: Call, monoid: str, x: Tensor, dims, keepdim: bool) -> Tensor:
    if x.dtype == dtypes.b1:
        return _logical(call, {"max": "any", "min": "all"}[monoid], x, dims, keepdim)
    return _simple(call, monoid, x, dims, keepdim)


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(call: Call, x, dims=None, keepdim=False):
    return _logical(call, "any", x, dims, keepdim)


@lowers("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(call: Call, x, dims=None, keepdim=False):
    return _logical(call, "all", x, dims, keepdim)


def _logical(call: Call, monoid: str, x: Tensor, dims, keepdim: bool) -> Tensor:
    dims = normal_dims(dims, x.rank)
    nest = _over(call, x)
    value = nest.read(x, exact=True)
    value = value if value.dtype == dtypes.b1 else value.ne(0)
    return call.finish(nest, nest.reduce(monoid, value, dims), kept(x.rank, dims, keepdim))


@lowers("aten.argmax.default")
def argmax(call: Call, x, d=None, keepdim=False):
    return _arg(call, "argmax", x, d, keepdim)


@lowers("aten.argmin.default")
def argmin(call: Call, x, d=None, keepdim=False):
    return _arg(call, "argmin", x, d, keepdim)


def _arg(call: Call, monoid: str, x: Tensor, d, keepdim: bool) -> Tensor:
    dims = normal_dims(d, x.rank)
    nest = _over(call, x)
    position = nest.arg(monoid, nest.read(x, exact=True).widen(), dims)[1]
    return call.finish(nest, position, kept(x.rank, dims, keepdim))


@lowers("aten.max.dim")
def max_dim(call: Call, x, d, keepdim=False):
    return _extreme_and_place(call, "argmax", x, d, keepdim)


@lowers("aten.min.dim")
def min_dim(call: Call, x, d, keepdim=False):
    return _extreme_and_place(call, "argmin", x, d, keepdim)


def _extreme_and_place(call: Call, monoid: str, x: Tensor, d: int, keepdim: bool) -> tuple:
    dims = normal_dims(d, x.rank)
    nest = _over(call, x)
    if x.dtype == dtypes.b1:
        raise NotLowered("extremes of booleans with their places")
    results = nest.arg(monoid, nest.read(x, exact=True).widen(), dims)
    places = kept(x.rank, dims, keepdim)
    return call.finish_all(nest, [(results[0], places), (results[1], places)])


# -- moments


@lowers("aten.var.correction", "aten.var.dim")
def var(call: Call, x, dims=None, unbiased=None, keepdim=False, *, correction=None):
    return _moments(call, x, dims, _correction(unbiased, correction), keepdim, root=False)[0]


@lowers("aten.std.correction", "aten.std.dim")
def std(call: Call, x, dims=None, unbiased=None, keepdim=False, *, correction=None):
    return _moments(call, x, dims, _correction(unbiased, correction), keepdim, root=True)[0]


@lowers("aten.var.default")
def var_of_all(call: Call, x, unbiased=True):
    return _moments(call, x, None, int(unbiased), False, root=False)[0]


@lowers("aten.std.default")
def std_of_all(call: Call, x, unbiased=True):
    return _moments(call, x, None, int(unbiased), False, root=True)[0]


@lowers("aten.var_mean.correction", "aten.var_mean.dim")
def var_mean(call: Call, x, dims=None, unbiased=None, keepdim=False, *, correction=None):
    return _moments(call, x, dims, _correction(unbiased, correction), keepdim, root=False)


@lowers("aten.std_mean.correction")
def std_mean(call: Call, x, dims=None, *, correction=None, keepdim=False):
    return _moments(call, x, dims, _correction(None, correction), keepdim, root=True)


def _correction(unbiased, correction):
    if correction is not None:
        return correction
    return 1 if unbiased is None else int(unbiased)


def _moments(call: Call, x: Tensor, dims, correction, keepdim: bool, root: bool) -> tuple:
    dims = normal_dims(dims, x.rank)
    nest = _over(call, x)
    average, squares = nest.moments(nest.read(x).to(call.compute()), dims)
    freedom = (squares.lift(nest.count(dims)) - correction).maximum(0)
    spread = squares / freedom
    places = kept(x.rank, dims, keepdim)
    return call.finish_all(
        nest, [(spread.sqrt() if root else spread, places), (average, places)][: len(call.specs)]
    )


@lowers("aten.linalg_vector_norm.default")
def vector_norm(call: Call, x, order=2, dims=None, keepdim=False, *, dtype=None):
    nest = _over(call, x)
    dims = normal_dims(dims, x.rank)
    value = nest.read(x).to(call.compute())
    if order and all(x.shape[d] == 1 for d in dims):
        order = 1  # as torch does: other powers of one element may be out of range
    return call.finish(nest, _norm(nest, value, order, dims), kept(x.rank, dims, keepdim))


@lowers("aten.norm.ScalarOpt_dim", "aten.norm.Scalar", "aten.norm.ScalarOpt_dim_dtype")
def norm(call: Call, x, order=2, dims=None, keepdim=False, *, dtype=None):
    return vector_norm(call, x, 2 if order is None else order, dims, keepdim)


def _norm(nest: Nest, x: Expr, order: float, dims) -> Expr:
    if order == 2:
        return nest.reduce("sum", x * x, dims).sqrt()
    if order == 1:
        return nest.reduce("sum", x.abs(), dims)
    if order in (math.inf, -math.inf):
        return nest.reduce("max" if order > 0 else "min", x.abs(), dims)
    if order == 0:
        return nest.reduce("sum", x.ne(0).to(x.dtype), dims)
    return nest.reduce("sum", x.abs().pow(order), dims).pow(1 / order)


@lowers("aten.logsumexp.default")
def logsumexp(call: Call, x, dims, keepdim=False):
    """log(sum(exp(x - max))) + max, with an infinite max not subtracted."""
    dims = normal_dims(dims, x.rank)
    nest = _over(call, x)
    value = nest.read(x).to(call.compute())
    top = nest.reduce("max", value, dims)
    shift = where(top.abs().eq(math.inf), 0.0, top)
    total = nest.reduce("sum", (value - shift).exp(), dims)
    return call.finish(nest, total.log() + shift, kept(x.rank, dims, keepdim))


# -- scans


@lowers("aten.cumsum.default")
def cumsum(call: Call, x, d, *, dtype=None):
    return _scan(call, "sum", x, d)


@lowers("aten.cumprod.default")
def cumprod(call: Call, x, d, *, dtype=None):
    return _scan(call, "prod", x, d)


@lowers("aten.logcumsumexp.default")
def logcumsumexp(call: Call, x, d):
    need_arithmetic(x.dtype, call.out.dtype)
    return _scan(call, "logaddexp", x, d)


@lowers("aten.cummax.default")
def cummax(call: Call, x, d):
    return _running_extreme(call, "max", x, d)


@lowers("aten.cummin.default")
def cummin(call: Call, x, d):
    return _running_extreme(call, "min", x, d)


def _running_extreme(call: Call, monoid: str, x: Tensor, d: int) -> tuple:
    """The extreme so far, and the last place that reached it. A place reaches it where its value is
    the extreme or NaN, and places ascend: the last that did is their running maximum."""
    if x.dtype == dtypes.b1:
        raise NotLowered("running extremes of booleans")
    nest, d = _scanning(call, x, d)
    value = nest.read(x, exact=True).widen()
    best, at = nest.scan(monoid, value, d), nest.position(d)
    reached = value.eq(best)
    if x.dtype.is_float:
        reached = reached | value.ne(value)
    return call.finish_all(nest, [(best, None), (nest.scan("max", where(reached, at, 0), d), None)])


def _scan(call: Call, monoid: str, x: Tensor, d: int) -> Tensor:
    nest, d = _scanning(call, x, d)
    return call.finish(nest, nest.scan(monoid, nest.read(x).to(call.compute()), d))


def _scanning(call: Call, x: Tensor, d: int) -> tuple[Nest, int]:
    """A nest whose dimension `d`, given back counted from the first, is one axis."""
    if x.rank == 0:
        raise NotLowered("a scan of a scalar")
    d = normal(d, x.rank)
    return call.nest(x.shape, x, single=(d,)), d


# -- softmax


@lowers("aten._softmax.default")
def softmax(call: Call, x, d, half_to_float=False):
    """exp(x - max) / sum. A row of -inf gives NaN, as eager's does."""
    nest, dims, value = _softmax_input(call, x, d)
    powers = (value - nest.reduce("max", value, dims)).exp()
    return call.finish(nest, powers / nest.reduce("sum", powers, dims))


@lowers("aten._log_softmax.default")
def log_softmax(call: Call, x, d, half_to_float=False):
    nest, dims, value = _softmax_input(call, x, d)
    shifted = value - nest.reduce("max", value, dims)
    return call.finish(nest, shifted - nest.reduce("sum", shifted.exp(), dims).log())


def _softmax_input(call: Call, x: Tensor, d: int):
    dims = normal_dims(d, x.rank) if x.rank else ()
    nest = _over(call, x)
    return nest, dims, nest.read(x).to(dtypes.compute(call.out.dtype))


@lowers("aten._softmax_backward_data.default")
def softmax_backward(call: Call, grad, output, d, input_dtype=None):
    """y (g - sum(g y)), as eager: y g - y sum(g y) rounds each product before they cancel."""
    dims = normal_dims(d, grad.rank) if grad.rank else ()
    nest = call.nest(grad.shape, grad, output)
    g, y = nest.read(grad).widen(), nest.read(output).widen()
    return call.finish(nest, y * (g - nest.reduce("sum", g * y, dims)))


@lowers("aten._log_softmax_backward_data.default")
def log_softmax_backward(call: Call, grad, output, d, input_dtype=None):
    dims = normal_dims(d, grad.rank) if grad.rank else ()
    nest = call.nest(grad.shape, grad, output)
    g, y = nest.read(grad).widen(), nest.read(output).widen()
    return call.finish(nest, g - y.exp() * nest.reduce("sum", g, dims))


# -- triangles: the position decides


@lowers("aten.triu.default")
def triu(call: Call, x, diagonal=0):
    return _triangle(call, x, lambda row, column: column - row >= diagonal)


@lowers("aten.tril.default")
def tril(call: Call, x, diagonal=0):
    return _triangle(call, x, lambda row, column: column - row <= diagonal)


def _triangle(call: Call, x: Tensor, keeps) -> Tensor:
    nest = _over(call, x)
    keep = keeps(nest.position(x.rank - 2), nest.position(x.rank - 1))
    return call.finish(nest, where(keep, nest.read(x), 0))
