"""Losses: the negative log likelihood reads one element per row. Its gradient is taken apart, in
`capture/losses.py`."""

from __future__ import annotations

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest, Spec
from torchweld.capture.lowering.ranges import check_range, in_range, is_inside, read_where
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir.size import product
from torchweld.ir.views import Tensor

NONE, MEAN, SUM = 0, 1, 2  # ATen's numbers for `reduction`


@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(call: Call, x, target, weight, reduction, ignore):
    """x [N, C, ...] of log probabilities, target [N, ...]: (loss, sum of weights).

    The loss of each row is a node of its own: fused with what makes x, it keeps x out of memory.
    """
    if x.rank < 2:
        raise NotLowered("one sample without a batch")
    guarded = check_range(call, target, x.shape[1], ignored=ignore)
    rows = range(target.rank)
    free = [(x, [0, None, *range(1, target.rank)])] + (
        [(weight, [None])] if weight is not None else []
    )
    nest = call.nest(target.shape, target, extra=free)
    valid, label, w = _label(nest, target, weight, ignore, x, rows, x.dtype)
    guards = [is_inside(nest.read(target), 0, x.shape[1])] if guarded else []
    picked = read_where(nest, x, [0, label, *range(1, target.rank)], guards).widen()
    loss = where(valid, -(picked * w), 0)
    if reduction == NONE:
        return call.finish_all(nest, [(loss, None), None])
    each = nest.store(loss, _spec_of_rows(call, target.shape))
    nest.close()
    nest = call.nest(target.shape, target, each, extra=free[1:])
    valid, _, w = _label(nest, target, weight, ignore, x, rows, x.dtype)
    total = nest.reduce("sum", where(valid, w, 0), rows)
    summed = nest.reduce("sum", nest.read(each), rows)
    value = summed / total if reduction == MEAN else summed
    return call.finish_all(nest, [(value, ()), (total, ())])


def _spec_of_rows(call: Call, shape) -> Spec:
    """Contiguous, in the type that losses are added up in."""
    strides = tuple(product(shape[k + 1 :]) for k in range(len(shape)))
    return Spec(tuple(shape), strides, call.compute(), call.out.device)


def _label(
    nest: Nest, target: Tensor, weight, ignore: int, x: Tensor, places, dtype
) -> tuple[Expr, Expr, Expr]:
    """(is counted, class inside the range, its weight)."""
    label = nest.read(target, places).to(dtypes.i64)
    valid = label.ne(ignore)
    label = in_range(where(valid, label, 0), x.shape[1], wrap=False)
    compute = dtypes.compute(dtype)
    w = nest.number(1, compute) if weight is None else nest.read(weight, [label]).to(compute)
    return valid, label, w


@lowers("aten.mse_loss.default")
def mse_loss(call: Call, x, target, reduction=MEAN):
    nest = call.nest(x.shape, x, target)
    difference = nest.read(x).to(call.compute()) - nest.read(target).to(call.compute())
    square, dims = difference * difference, range(x.rank)
    if reduction == NONE:
        return call.finish(nest, square)
    total = nest.reduce("sum", square, dims)
    return call.finish(nest, total / nest.count(dims) if reduction == MEAN else total, ())


@lowers("aten.mse_loss_backward.default")
def mse_loss_backward(call: Call, grad, x, target, reduction):
    nest = call.nest(x.shape, grad, x, target)
    g, value, goal = (nest.read(t).to(call.compute()) for t in (grad, x, target))
    scale = 2 / value.lift(nest.count(range(x.rank))) if reduction == MEAN else 2
    return call.finish(nest, (value - goal) * g * scale)
