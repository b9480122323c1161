"""Gradients that calls of aten.convolution_backward make, one by one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from torchweld.ir.nodes import Extern, View
from torchweld.templates.conv.comp import CONVOLUTION

BACKWARD = "aten.convolution_backward.default"
IMAGE, WEIGHT, BIAS = range(3)  # places among the outputs
_RANKS = (3, 4, 5)  # batch, channels, and one to three sides


@dataclass(frozen=True, slots=True)
class WeightGradient:
    """The gradient of a convolution's weight [groups*results, channels, window ...]:

    dw[r, c, i, j] = sum over n, h and w of
        points[n, r, h, w] * image[n, g*channels + c, h*stride + i*dilation - padding, ...]

    g is the group of r. `points`: the gradient of what the convolution makes, `image`: what it
    reads; of a transposed one the reverse.
    """

    points: View
    image: View
    groups: int
    results: int
    channels: int
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def weight_gradient(node: object) -> WeightGradient | None:
    """What a call makes of its weight; None of another node, where the weight's gradient is not
    wanted, and where a number other than the images' sizes is not known."""
    if not isinstance(node, Extern) or node.target != BACKWARD or node.kwargs:
        return None
    gradient, image, weight, _, stride, padding, dilation, transposed, _, groups, _ = node.args
    numbers = (*weight.shape, *stride, *padding, *dilation, groups)
    known = all(isinstance(n, int) for n in numbers)
    if node.outputs[WEIGHT] is None or len(image.shape) not in _RANKS or not known:
        return None
    points, image = (image, gradient) if transposed else (gradient, image)
    results, channels, *window = weight.shape
    sides = tuple(window), tuple(stride), tuple(padding), tuple(dilation)
    return WeightGradient(points, image, groups, results // groups, channels, *sides)


def image_gradient(node: Extern) -> Extern | None:
    """The convolution, turned around, that makes what a call makes of its image: of its results'
    gradient, with the same weight. None of another node, and where the image's is not wanted."""
    if node.target != BACKWARD or node.kwargs or node.outputs[IMAGE] is None:
        return None
    gradient, image, weight, _, stride, padding, dilation, transposed, _, groups, _ = node.args
    spans = zip(image.shape[2:], gradient.shape[2:], stride, padding, dilation, weight.shape[2:])
    rest = [size - ((points - 1) * step - 2 * p + apart * (taps - 1) + 1)
            for size, points, step, p, apart, taps in spans]  # fmt: skip
    more = (0,) * len(rest) if transposed else tuple(rest)  # results that no window begins at
    args = (gradient, weight, None, stride, padding, dilation, not transposed, more, groups)
    outputs = (node.outputs[IMAGE],)
    return replace(node, name=f"{node.name}_image", target=CONVOLUTION, args=args, outputs=outputs)


def without(node: Extern, gone: Collection[int]) -> list[Extern]:
    """A call of aten.convolution_backward without the outputs at the places `gone`; none where
    nothing is left."""
    if not gone:
        return [node]
    *args, wanted = node.args
    outputs = tuple(None if k in gone else name for k, name in enumerate(node.outputs))
    wanted = tuple(w and k not in gone for k, w in enumerate(wanted))
    call = replace(node, name=f"{node.name}_others", args=(*args, wanted), outputs=outputs)
    return [call] if any(outputs) else []
