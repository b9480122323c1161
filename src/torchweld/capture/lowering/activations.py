"""Activations and their gradients, as scalar expressions."""

from __future__ import annotations

import math

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.pointwise import pointwise
from torchweld.capture.lowering.registry import lowers
from torchweld.core.errors import NotLowered
from torchweld.ir import views
from torchweld.ir.size import divide
from torchweld.ir.views import Tensor

_KAPPA = math.sqrt(2 / math.pi)  # gelu's tanh form is x * sigmoid(2 * KAPPA * (x + CUBIC * x**3))
_CUBIC = 0.044715


@pointwise("aten.gelu.default")
def gelu(x, approximate="none"):
    if approximate == "tanh":
        return x * _tanh_gate(x)
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


def _tanh_gate(x: Expr) -> Expr:
    """(1 + tanh(u)) / 2 = sigmoid(2 u)."""
    return (x * (2 * _KAPPA + (2 * _KAPPA * _CUBIC) * (x * x))).sigmoid()


@pointwise("aten.gelu_backward.default")
def gelu_backward(grad, x, approximate="none"):
    if approximate == "tanh":
        gate = _tanh_gate(x)
        slope = 2 * _KAPPA + (6 * _KAPPA * _CUBIC) * (x * x)
        return grad * (gate + x * (gate * (1 - gate) * slope))
    cdf = 0.5 * (1 + (x * math.sqrt(0.5)).erf())
    pdf = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return grad * (cdf + x * pdf)


pointwise("aten.silu.default")(lambda x: x * x.sigmoid())
pointwise("aten.sigmoid_backward.default")(lambda grad, y: grad * ((1 - y) * y))
pointwise("aten.tanh_backward.default")(lambda grad, y: grad * (1 - y * y))
pointwise("aten.mish.default")(lambda x: x * _softplus(x).tanh())
pointwise("aten.hardsigmoid.default")(lambda x: (x + 3).maximum(0).minimum(6) / 6)
pointwise("aten.hardswish.default")(lambda x: x * (x + 3).maximum(0).minimum(6) / 6)
pointwise("aten.hardtanh.default")(lambda x, low=-1, high=1: x.maximum(low).minimum(high))


@pointwise("aten.silu_backward.default")
def silu_backward(grad, x):
    s = x.sigmoid()
    return grad * (s * (1 + x * (1 - s)))


@pointwise("aten.mish_backward.default")
def mish_backward(grad, x):
    s, t = x.sigmoid(), _softplus(x).tanh()
    return grad * (t + x * s * (1 - t * t))


def _softplus(x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    return x.maximum(0) + (-x.abs()).exp().log1p()


# Rows below branch on a comparison of their input, which is taken as stored.


@pointwise("aten.softplus.default", exact=True)
def softplus(x, beta=1, threshold=20):
    z = x * beta
    return where(z > threshold, x, z.exp().log1p() / beta)


@pointwise("aten.softplus_backward.default", exact=True)
def softplus_backward(grad, x, beta, threshold):
    z = x * beta
    return where(z > threshold, grad, grad * z.sigmoid())


@pointwise("aten.threshold_backward.default", exact=True)
def threshold_backward(grad, x, threshold):
    return where(x <= threshold, 0, grad)


@pointwise("aten.threshold.default", exact=True)
def threshold(x, threshold, value):
    return where(x <= threshold, value, x)


@pointwise("aten.leaky_relu.default", exact=True)
def leaky_relu(x, slope=0.01):
    return where(x > 0, x, x * slope)


@pointwise("aten.leaky_relu_backward.default", exact=True)
def leaky_relu_backward(grad, x, slope, is_result=False):
    return where(x > 0, grad, grad * slope)


@lowers("aten.rrelu_with_noise_functional.default")
def rrelu(call: Call, x, noise, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    """In inference, with the mean slope; the noise is left as it is."""
    if training:
        raise NotLowered("random slopes")
    nest = call.nest(call.out.shape, x)
    given, dtype = nest.read(x, exact=True), call.compute()
    result = leaky_relu(given.to(dtype), (lower + upper) / 2)
    return call.finish(nest, result), call.fresh(noise) if 1 in call.used else None


@pointwise("aten.rrelu_with_noise_backward.default", exact=True)
def rrelu_backward(grad, x, noise, lower, upper, training, is_result):
    if training:
        raise NotLowered("random slopes")
    return leaky_relu_backward(grad, x, (lower + upper) / 2)


@pointwise("aten.elu.default", exact=True)
def elu(x, alpha=1, scale=1, input_scale=1):
    return where(x > 0, x * scale, (x * input_scale).expm1() * (alpha * scale))


@pointwise("aten.elu_backward.default", exact=True)
def elu_backward(grad, alpha, scale, input_scale, is_result, x):
    negative = (
        input_scale * (x + alpha * scale)
        if is_result
        else input_scale * alpha * scale * (x * input_scale).exp()
    )
    return where(x > 0, grad * scale, grad * negative)  # NaN gives NaN


pointwise("aten.celu.default", exact=True)(lambda x, alpha=1.0: elu(x, alpha, 1, 1 / alpha))
pointwise("aten.selu.default", exact=True)(
    lambda x: elu(x, 1.6732632423543772, 1.0507009873554805, 1)
)


@pointwise("aten.hardtanh_backward.default", exact=True)
def hardtanh_backward(grad, x, low, high):
    return where((x <= low) | (x >= high), 0, grad)


@pointwise("aten.hardsigmoid_backward.default", exact=True)
def hardsigmoid_backward(grad, x):
    return where((x > -3) & (x < 3), grad / 6, 0)


@pointwise("aten.hardswish_backward.default", exact=True)
def hardswish_backward(grad, x):
    return where(x <= -3, 0, where(x >= 3, grad, grad * (x / 3 + 0.5)))


@pointwise("aten.hardshrink.default", exact=True)
def hardshrink(x, lambd=0.5):
    return where((x >= -lambd) & (x <= lambd), 0, x)


@pointwise("aten.softshrink.default", exact=True)
def softshrink(x, lambd=0.5):
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0))


@lowers("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(call: Call, x):
    """(log sigmoid(x), exp(-|x|)); on a GPU the second is empty."""
    nest = call.nest(x.shape, x)
    value = nest.read(x).widen()
    decay = ((-value.abs()).exp(), None) if call.specs[1].shape == x.shape else None
    y, kept = call.finish_all(nest, [(_log_sigmoid(value), None), decay])
    if kept is None:
        kept = views.filled(0.0, x.dtype, x.device, call.specs[1].shape)
    return y, kept


def _log_sigmoid(x: Expr) -> Expr:
    return x.minimum(0) - (-x.abs()).exp().log1p()


@lowers("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(call: Call, grad, x, _):
    """Without what the forward kept, which is empty on a GPU."""
    nest = call.nest(call.out.shape, grad, x)
    value, g = nest.read(x, exact=True).widen(), nest.read(grad).widen()
    return call.finish(nest, g * (-value).sigmoid())


@lowers("aten._prelu_kernel.default", "aten.prelu.default")
def prelu(call: Call, x, weight):
    slope = _prelu_weight(x, weight)
    nest = call.nest(x.shape, x, slope)
    value = nest.read(x, exact=True).widen()
    return call.finish(nest, where(value > 0, value, value * nest.read(slope).to(value.dtype)))


def _prelu_weight(x: Tensor, weight: Tensor) -> Tensor:
    """One slope per channel (dimension 1), where the weight has one dimension."""
    if weight.rank == 1 and x.rank > 2:
        for _ in range(x.rank - 2):
            weight = views.unsqueeze(weight, weight.rank)
    return weight


@lowers("aten._prelu_kernel_backward.default")
def prelu_backward(call: Call, grad, x, weight):
    nest = call.nest(x.shape, grad, x, weight)
    value, g = nest.read(x, exact=True).widen(), nest.read(grad).widen()
    w, positive = nest.read(weight).to(value.dtype), value > 0
    return call.finish_all(
        nest, [(where(positive, g, g * w), None), (where(positive, 0, g * value), None)]
    )


@lowers("aten.glu.default")
def glu(call: Call, x, d=-1):
    a, b = _halves(x, d)
    nest = call.nest(call.out.shape, a, b)
    return call.finish(nest, nest.read(a).widen() * nest.read(b).widen().sigmoid())


def _halves(x: Tensor, d: int) -> tuple[Tensor, Tensor]:
    d = d % x.rank
    half = divide(x.shape[d], 2)
    parts = [views.slice_(x, d, start, half) for start in (0, half)] if half is not None else [None]
    if None in parts:
        raise NotLowered("halves of a dimension in pieces")
    return parts[0], parts[1]


@lowers("aten.glu_backward.default")
def glu_backward(call: Call, grad, x, d):
    """Both halves' gradients, chosen by position: the halves and the gradient are read again for
    each."""
    a, b = _halves(x, d)
    d = d % x.rank
    places = tuple(None if k == d else k for k in range(x.rank))
    nest = call.nest(x.shape, extra=[(t, places) for t in (grad, a, b)])
    half = grad.shape[d]
    first = nest.position(d) < half
    results = []
    for start, guard in ((0, first), (half, first.logical_not())):
        here = tuple(nest.at(d) + start * -1 if k == d else k for k in range(x.rank))
        g, u, gate = (nest.read(t, here, guard=guard).widen() for t in (grad, a, b))
        s = gate.sigmoid()
        results.append(g * s if start == 0 else g * u * s * (1 - s))
    return call.finish(nest, where(first, *results))
