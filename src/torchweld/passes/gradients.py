"""Gradients of a convolution on a CPU one by one, where a kernel of ours makes that of the weight.

    before: dx, dw, db = convolution_backward(dy, x, w)
    after:  dx = convolution(dy, w), transposed;  dw = convolution_backward(dy, x, w);
            comp db = sum of dy over images and places

The calls become kernels after planning (plan/convolutions.py). The library's depthwise gradients
reach a thirtieth of what a core can do: Zen 4, one thread, 8 x 192 x 28 x 28, windows of 5 x 5,
that of the weight 23.8 ms, the convolution 1.0; in steps of two, 64 channels of 56 x 56, that of
the image 8.4 and 0.5.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.core.options import Options
from torchweld.ir.nodes import Extern, Graph, Node
from torchweld.passes.biases import bias_gradient_apart
from torchweld.plan.convolutions import is_always_own, is_own_gradient
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import call_of
from torchweld.templates.conv.gradient import BACKWARD, BIAS, IMAGE, WEIGHT, image_gradient, without


def gradients_apart(graph: Graph, target: Target, options: Options) -> Graph:
    """`graph` with such calls taken apart."""
    if not options.fuse:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _apart(node, graph, target) if _is_backward(node) else [node]
    return replace(graph, nodes=tuple(nodes))


def _is_backward(node: Node) -> bool:
    return isinstance(node, Extern) and node.target == BACKWARD and not node.kwargs


def _apart(node: Extern, graph: Graph, target: Target) -> list[Node]:
    image, made, gone = image_gradient(node), list[Node](), list[int]()
    if _is_depthwise(image) and is_always_own(image, graph, target):
        made.append(image)
        gone.append(IMAGE)
    if not is_own_gradient(node, graph, target):
        return [*made, *without(node, gone)]
    (weight,) = without(node, [k for k in (IMAGE, BIAS) if node.outputs[k] is not None])
    made.append(replace(weight, name=f"{node.name}_weight"))
    rest = without(node, [*gone, WEIGHT])
    return [*made, *(n for call in rest for n in bias_gradient_apart(call, graph))]


def _is_depthwise(image: Extern | None) -> bool:
    """Whether each channel is convolved alone, to one of the result, and all sizes are known."""
    call = call_of(image)
    if call is None or call.groups == 1 or (call.channels, call.results) != (1, 1):
        return False
    *_, more, _ = image.args
    return all(isinstance(n, int) for n in (*call.image.shape[2:], *more))
