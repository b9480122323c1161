"""Layer, RMS, group and batch norm, forward and backward. A forward norm is one Comp with all that
it saves."""

from __future__ import annotations

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr
from torchweld.capture.lowering.nest import Nest, Spec
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir import views
from torchweld.ir.views import Tensor

# Points of a group that one program of a GPU holds in registers (templates/pointwise_reduce/gpu).
_HELD_GROUP = 16384


def _scaled(value: Expr, nest: Nest, weight: Tensor | None, bias: Tensor | None) -> Expr:
    if weight is not None:
        value = value * nest.read(weight).to(value.dtype)
    return value if bias is None else value + nest.read(bias).to(value.dtype)


# -- layer norm: rows on the left, normalized columns on the right


@lowers("aten.native_layer_norm.default")
def layer_norm(call: Call, x, shape, weight, bias, eps):
    rows = x.rank - len(shape)
    columns = range(rows, x.rank)
    nest = call.nest(x.shape, x, weight, bias)
    value = nest.read(x).widen()
    mean, squares = nest.moments(value, columns)
    rstd = (squares / nest.count(columns) + eps).rsqrt()
    saved = [*range(rows), *(None for _ in shape)]
    y = _scaled((value - mean) * rstd, nest, weight, bias)
    return call.finish_all(nest, [(y, None), (mean, saved), (rstd, saved)])


@lowers("aten.native_layer_norm_backward.default")
def layer_norm_backward(call: Call, grad, x, shape, mean, rstd, weight, bias, mask):
    """dx = rstd * (h - mean(h) - z * mean(h * z)), h = grad * weight, z the normalized x; dw = sum
    grad * z; db = sum grad."""
    rows = x.rank - len(shape)
    dx = dw = db = None
    if mask[0] and 0 in call.used:
        nest = call.nest(x.shape, grad, x, mean, rstd, weight)
        h = _scaled(nest.read(grad).widen(), nest, weight, None)
        z, scale = _normalized(nest, x, mean, rstd)
        dx = nest.store(_centred(nest, h, z, range(rows, x.rank)) * scale, call.specs[0])
        nest.close()
    if call.used & {1, 2}:
        nest = call.nest(x.shape, grad, x, mean, rstd)
        dw, db = _parameter_gradients(
            call, nest, grad, lambda: _normalized(nest, x, mean, rstd)[0], range(rows), mask
        )
    return dx, dw, db


def _normalized(nest: Nest, x: Tensor, mean: Tensor | None, rstd: Tensor) -> tuple[Expr, Expr]:
    value, scale = nest.read(x).widen(), nest.read(rstd).widen()
    centred = value if mean is None else value - nest.read(mean).to(value.dtype)
    scale = scale.to(value.dtype)
    return centred * scale, scale


def _centred(nest: Nest, h: Expr, z: Expr, columns) -> Expr:
    return h - nest.mean(h, columns) - z * nest.mean(h * z, columns)


def _parameter_gradients(call: Call, nest: Nest, grad: Tensor, normalized, over, mask) -> tuple:
    """(dw, db), each None if masked or unused: results 1 and 2."""
    dims = [d for d in range(len(nest.shape)) if d not in over]
    g, found = nest.read(grad).widen(), [None, None]
    if mask[1] and 1 in call.used:
        found[0] = nest.store(nest.reduce("sum", g * normalized(), over), call.specs[1], dims)
    if mask[2] and 2 in call.used:
        found[1] = nest.store(nest.reduce("sum", g, over), call.specs[2], dims)
    if nest.stores:
        nest.close()
    return tuple(found)


# -- RMS norm


@lowers("aten._fused_rms_norm.default")
def rms_norm(call: Call, x, shape, weight, eps):
    rows = x.rank - len(shape)
    columns = range(rows, x.rank)
    nest = call.nest(x.shape, x, weight)
    value = nest.read(x).widen()
    if eps is None:
        eps = _epsilon(value.dtype if x.dtype.is_low_precision else x.dtype)
    rstd = (nest.mean(value * value, columns) + eps).rsqrt()
    saved = [*range(rows), *(None for _ in shape)]
    return call.finish_all(nest, [(_scaled(value * rstd, nest, weight, None), None), (rstd, saved)])


def _epsilon(dtype: dtypes.DType) -> float:
    return 2.0**-52 if dtype == dtypes.f64 else 2.0**-23


@lowers("aten._fused_rms_norm_backward.default")
def rms_norm_backward(call: Call, grad, x, shape, rstd, weight, mask):
    """dx = rstd * (h - z * mean(h * z)), h = grad * weight, z the normalized x; dw = sum grad *
    z."""
    rows = x.rank - len(shape)
    dx = dw = None
    if mask[0] and 0 in call.used:
        nest = call.nest(x.shape, grad, x, rstd, weight)
        h = _scaled(nest.read(grad).widen(), nest, weight, None)
        z, scale = _normalized(nest, x, None, rstd)
        dx = nest.store((h - z * nest.mean(h * z, range(rows, x.rank))) * scale, call.specs[0])
        nest.close()
    if 1 in call.used:
        nest = call.nest(x.shape, grad, x, rstd)
        dw, _ = _parameter_gradients(
            call,
            nest,
            grad,
            lambda: _normalized(nest, x, None, rstd)[0],
            range(rows),
            (*mask, False),
        )
    return dx, dw


# -- group norm: x [N, C, ...] as [N, G, C / G, inner]


def _grouped(call: Call, x: Tensor, n, c, inner, groups) -> Tensor:
    return call.reshaped(x, (n, groups, _exact(c, groups), inner))


def _exact(c, groups):
    if not isinstance(c, int):
        raise NotLowered("groups of a symbolic number of channels")
    return c // groups


def _per_channel(call: Call, tensor: Tensor | None, groups: int) -> Tensor | None:
    return (
        None
        if tensor is None
        else call.reshaped(tensor, (groups, _exact(tensor.shape[0], groups), 1))
    )


def _column(tensor: Tensor) -> Tensor:
    """[N, G] against [N, G, C / G, inner]."""
    return views.unsqueeze(views.unsqueeze(tensor, 2), 2)


@lowers("aten.native_group_norm.default")
def group_norm(call: Call, x, weight, bias, n, c, inner, groups, eps):
    grouped = _grouped(call, x, n, c, inner, groups)
    w, b = (_per_channel(call, t, groups) for t in (weight, bias))
    nest = call.nest(grouped.shape, grouped, w, b)
    value = nest.read(grouped).widen()
    mean, squares = nest.moments(value, (2, 3))
    rstd = (squares / nest.count((2, 3)) + eps).rsqrt()
    y = _scaled((value - mean) * rstd, nest, w, b)
    results = [_store_as(call, nest, y, 0, grouped) if 0 in call.used else None]
    results += [
        nest.store(v, call.specs[k], (0, 1)) if k in call.used else None
        for k, v in ((1, mean), (2, rstd))
    ]
    nest.close()
    if results[0] is not None:
        results[0] = call.reshaped(results[0], call.specs[0].shape)
    return tuple(results)


def _store_as(call: Call, nest: Nest, value: Expr, k: int, grouped: Tensor) -> Tensor:
    """Result k, laid out as eager has it: its channels split in two, the rest one dimension."""
    spec = call.specs[k]
    return nest.store(
        value, Spec(grouped.shape, views.contiguous_strides(grouped.shape), spec.dtype, spec.device)
    )


@lowers("aten.native_group_norm_backward.default")
def group_norm_backward(call: Call, grad, x, mean, rstd, weight, n, c, inner, groups, mask):
    g4, x4 = (_grouped(call, t, n, c, inner, groups) for t in (grad, x))
    m4, r4, w4 = _column(mean), _column(rstd), _per_channel(call, weight, groups)
    given, dx = (g4, x4, m4, r4), None
    wants_dx = mask[0] and 0 in call.used
    if wants_dx and _by_channel(call, g4, inner):
        dx, *parameters = _group_norm_by_channel(call, given, w4, mask)
        return call.reshaped(dx, call.specs[0].shape), *parameters
    if wants_dx:
        nest = call.nest(g4.shape, *given, w4)
        h = _scaled(nest.read(g4).widen(), nest, w4, None)
        z, scale = _normalized(nest, x4, m4, r4)
        dx = _store_as(call, nest, _centred(nest, h, z, (2, 3)) * scale, 0, g4)
        nest.close()
        dx = call.reshaped(dx, call.specs[0].shape)
    if not call.used & {1, 2}:
        return dx, None, None
    nest = call.nest(g4.shape, *given)
    g, z = nest.read(g4).widen(), _normalized(nest, x4, m4, r4)[0]
    return dx, *_group_parameters(call, nest, (g * z, g), (0, 3), mask)


def _by_channel(call: Call, grouped: Tensor, inner) -> bool:
    """Whether the sums that a group's gradient needs are made for each channel first, on a GPU. A
    group that no multiprocessor holds is read twice in any case. So both kinds of sums, over groups
    and over images, are made of the channels', and what is left is pointwise: one pass over the
    tensors fewer."""
    held = isinstance(inner, int) and grouped.shape[2] * inner <= _HELD_GROUP
    return call.specs[0].device.startswith("cuda") and not held


def _group_norm_by_channel(call: Call, given, weight: Tensor | None, mask) -> tuple:
    """(dx [N, G, C / G, inner], dw, db), by way of sums of g and of g * z over each channel."""
    grad, x, mean, rstd = given
    nest = call.nest(grad.shape, *given)
    g, z = nest.read(grad).widen(), _normalized(nest, x, mean, rstd)[0]
    kept = Spec(
        grad.shape[:3], views.contiguous_strides(grad.shape[:3]), g.dtype, call.specs[0].device
    )
    sums = [nest.store(nest.reduce("sum", v, (3,)), kept, (0, 1, 2)) for v in (g * z, g)]
    nest.close()
    sums = [views.unsqueeze(s, 3) for s in sums]
    means = _means_of_groups(call, sums, weight, kept, call.size(grad.shape[3]))
    nest = call.nest(grad.shape, *given, weight, *means)
    h = _scaled(nest.read(grad).widen(), nest, weight, None)
    z, scale = _normalized(nest, x, mean, rstd)
    of_z, of_h = map(nest.read, means)
    dx = _store_as(call, nest, (h - of_h - z * of_z) * scale, 0, grad)
    nest.close()
    if not call.used & {1, 2}:
        return dx, None, None
    nest = call.nest(sums[0].shape, *sums)
    return dx, *_group_parameters(call, nest, [nest.read(s) for s in sums], (0,), mask)


def _means_of_groups(call: Call, sums, weight: Tensor | None, kept: Spec, inner) -> list[Tensor]:
    """Over each group: [N, G, 1, 1]."""
    nest = call.nest(sums[0].shape, *sums, weight)
    shape = kept.shape[:2]
    spec = Spec(shape, views.contiguous_strides(shape), kept.dtype, kept.device)
    count = kept.shape[2] * inner
    found = [
        nest.store(nest.reduce("sum", _scaled(nest.read(s), nest, weight, None), (2,)) / count,
                   spec, (0, 1))
        for s in sums
    ]  # fmt: skip
    nest.close()
    return [_column(t) for t in found]


def _group_parameters(call: Call, nest: Nest, values, over, mask) -> list[Tensor | None]:
    """(dw, db): sums of `values` over the dimensions `over`."""
    found: list[Tensor | None] = [None, None]
    for k, value in enumerate(values, 1):
        if mask[k] and k in call.used:
            found[k - 1] = _store_pair(call, nest, nest.reduce("sum", value, over), k)
    if nest.stores:
        nest.close()
    return [None if t is None else call.reshaped(t, (t.shape[0] * t.shape[1],)) for t in found]


def _store_pair(call: Call, nest: Nest, value: Expr, k: int) -> Tensor:
    shape, spec = nest.shape[1:3], call.specs[k]
    return nest.store(
        value, Spec(shape, views.contiguous_strides(shape), spec.dtype, spec.device), (1, 2)
    )


# -- batch norm: statistics over all but dimension 1


def _channel(tensor: Tensor | None, rank: int) -> Tensor | None:
    """[C] against [N, C, ...]."""
    for _ in range(rank - 2):
        tensor = None if tensor is None else views.unsqueeze(tensor, tensor.rank)
    return tensor


def _others(rank: int) -> list[int]:
    return [d for d in range(rank) if d != 1]


@lowers("aten._native_batch_norm_legit_no_training.default")
def batch_norm_eval(call: Call, x, weight, bias, running_mean, running_var, momentum, eps):
    """Rounded to the result's dtype, fused or not: where scales are just below one, as of a new
    model, sums of unrounded results and 16-bit residuals fall below ties again and again, and a
    ResNet-50 ends with 3.5 times the error of eager."""
    w, b, m, v = (_channel(t, x.rank) for t in (weight, bias, running_mean, running_var))
    nest = call.nest(x.shape, x, w, b, m, v)
    value = nest.read(x).widen()
    rstd = (nest.read(v).to(value.dtype) + eps).rsqrt()
    y = _scaled((value - nest.read(m).to(value.dtype)) * rstd, nest, w, b)
    result = nest.store(y, call.out, must_round=True)
    nest.close()
    return result, *(views.filled(0.0, s.dtype, s.device, s.shape) for s in call.specs[1:])


@lowers("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    call: Call, x, weight, bias, running_mean, running_var, training, momentum, eps
):
    """(y, mean, rstd, new running mean, new running variance)."""
    if not training:
        y, *empty = batch_norm_eval(call, x, weight, bias, running_mean, running_var, momentum, eps)
        return (y, *empty[:2], running_mean, running_var)
    return _batch_norm(call, x, weight, bias, eps, running_mean, running_var, momentum)


@lowers("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(call: Call, x, weight, bias, training, momentum, eps):
    return _batch_norm(call, x, weight, bias, eps)


def _batch_norm(
    call: Call, x: Tensor, weight, bias, eps, running_mean=None, running_var=None, momentum=0.0
) -> tuple:
    w, b, m, v = (_channel(t, x.rank) for t in (weight, bias, running_mean, running_var))
    over = _others(x.rank)
    nest = call.nest(x.shape, x, w, b, m, v)
    value = nest.read(x).widen()
    mean, squares = nest.moments(value, over)
    count = nest.count(over)
    rstd = (squares / count + eps).rsqrt()
    y = _scaled((value - mean) * rstd, nest, w, b)
    results = [(y, None), (mean, (1,)), (rstd, (1,))]
    if running_mean is not None:
        results.append((_moving(nest, m, mean, momentum), (1,)))
        results.append((_moving(nest, v, squares / (squares.lift(count) - 1), momentum), (1,)))
    return call.finish_all(nest, results)


def _moving(nest: Nest, old: Tensor, new: Expr, momentum: float) -> Expr:
    return nest.read(old).to(new.dtype) * (1 - momentum) + new * momentum


@lowers("aten.native_batch_norm_backward.default")
def batch_norm_backward(
    call: Call, grad, x, weight, running_mean, running_var, mean, rstd, training, eps, mask
):
    """Training: dx = rstd * weight * (grad - mean(grad) - z * mean(grad * z)); evaluation: dx =
    grad * weight * rstd."""
    over, dx, dw, db = _others(x.rank), None, None, None
    w = _channel(weight, x.rank)
    if training:
        statistics = _channel(mean, x.rank), _channel(rstd, x.rank)
    else:
        statistics = _channel(running_mean, x.rank), _channel(running_var, x.rank)

    def normalized(nest: Nest) -> tuple[Expr, Expr]:
        value = nest.read(x).widen()
        m, r = (nest.read(s).to(value.dtype) for s in statistics)
        scale = r if training else (r + eps).rsqrt()
        return (value - m) * scale, scale

    if mask[0] and 0 in call.used:
        nest = call.nest(x.shape, grad, x, w, *statistics)
        g = nest.read(grad).widen()
        z, scale = normalized(nest)
        inner = _centred(nest, g, z, over) if training else g
        dx = nest.store(_scaled(inner * scale, nest, w, None), call.specs[0])
        nest.close()
    if call.used & {1, 2}:
        nest = call.nest(x.shape, grad, x, *statistics)
        dw, db = _parameter_gradients(call, nest, grad, lambda: normalized(nest)[0], over, mask)
    return dx, dw, db
