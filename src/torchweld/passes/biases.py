"""Biases of convolutions on a GPU, added by the kernels that read the result.

    before: y = convolution(x, w, b);  z = relu(y)
    after:  t = convolution(x, w);  comp y = t + b;  comp z = relu(y)

ATen adds a bias to what cuDNN returns in a kernel of its own, which reads and writes the whole
image once more. As a Comp it joins the kernels that read the image, or brings what the caller
sees into its layout. Its rounding stays eager's: the image is rounded, the sum is.

Products of matrices take a bias in, where arithmetic is what they take their time for. Else it
doubles their time: 802816 x 64 by 64 x 128 in bfloat16 takes 82 us on an H200, with a bias 173.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store, View
from torchweld.ir.size import product
from torchweld.ir.substitute import drop_unit_axes
from torchweld.layout.channels import is_whole
from torchweld.passes.patches import may_be_product
from torchweld.targets.target import Target

_CALL = "aten.convolution.default"


def separate_biases(graph: Graph, target: Target) -> Graph:
    """`graph` with biases of convolutions added by Comps, where no call reads the result."""
    called = {name for n in graph.nodes if isinstance(n, Extern) for name in n.reads}
    buffers, nodes = dict(graph.buffers), []
    for node in graph.nodes:
        parts = _parts(node, graph) if _has_bias_apart(node, graph, called, target) else (node,)
        nodes += parts
        if len(parts) > 1:
            made = replace(graph.buffers[node.outputs[0]], name=parts[0].outputs[0])
            buffers[made.name] = made
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _has_bias_apart(node: Node, graph: Graph, called: set[str], target: Target) -> bool:
    """ATen's own depthwise convolutions take it in before they round, but images go to cuDNN's
    (`channels.py`)."""
    if not isinstance(node, Extern) or node.target != _CALL or node.kwargs:
        return False
    _, weight, bias, *_, groups = node.args
    result = graph.buffers.get(node.outputs[0])
    if result is None or result.name in called or not isinstance(bias, View):
        return False
    if not is_whole(bias, graph):
        return False
    if may_be_product(node, graph):
        return _waits_for_memory(weight, target)
    return groups == 1 or len(weight.shape) == 4 or not result.dtype.is_low_precision


def _waits_for_memory(weight: View, target: Target) -> bool:
    """Whether an image times a matrix of 16 bits is less arithmetic than traffic."""
    columns, depth = weight.shape[0], product(weight.shape[1:])
    flops_per_byte = depth * columns / (depth + columns)
    return flops_per_byte * target.dram_bytes_per_s < target.products.sustained


def _parts(node: Extern, graph: Graph) -> tuple[Extern, Comp]:
    image, weight, bias, *rest = node.args
    result = graph.buffers[node.outputs[0]]
    made = f"{result.name}_unbiased"
    call = replace(node, args=(image, weight, None, *rest), outputs=(made,))
    return call, _sum(made, bias.buffer, result, node)


def _sum(image: str, bias: str, result: Buffer, node: Extern) -> Comp:
    """result[b, c, ...] = image[b, c, ...] + bias[c]"""
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(result.shape))
    place = tuple(axis(a.name) for a in axes)
    body = BodyBuilder()
    pixel = body.widen(body.load(image, place, result.dtype))
    shift = body.widen(body.load(bias, (place[1],), result.dtype))
    total = body.cast(body.op("add", pixel, shift), result.dtype)
    store = Store(result.name, place, total)
    return drop_unit_axes(Comp(f"{node.name}_bias", axes, body.body, (store,), node.origins))
