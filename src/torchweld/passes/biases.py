"""Biases of convolutions and of small products on a GPU, added by the kernels that read the result,
and their gradients, summed by those that make the result's.

    before: y = convolution(x, w, b);  z = relu(y)
    after:  t = convolution(x, w);  comp y = t + b;  comp z = relu(y)

    before: dx, dw, db = convolution_backward(dy, x, w)
    after:  dx, dw = convolution_backward(dy, x, w);  comp db = sum of dy over images and places

ATen adds a bias to what cuDNN returns in a kernel of its own, which reads and writes the whole
image once more. As a Comp it joins the kernels that read the image, or brings what the caller
sees into its layout. Its rounding stays eager's: the image is rounded, the sum is. So it is with
the gradient, which ATen sums by a general kernel: 175 us for 128 x 64 x 54 x 54 in bfloat16 on an
H100, twice, whose bytes take 16.

Products of matrices take a bias in, where arithmetic is what they take their time for. Else it
doubles their time: 802816 x 64 by 64 x 128 in bfloat16 takes 82 us on an H200, with a bias 173.

    before: y = addmm(b, x, w);         comp z = tanh(y)
    after:  t = mm(x, w);               comp y = t + b;  comp z = tanh(y)

Of small products in float32 cublasLt makes four kernels if there is a bias (targets/products.py has
the figures), and rounds as the two operations do.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.core import dtypes
from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store, View
from torchweld.ir.size import hint, product
from torchweld.ir.substitute import drop_unit_axes
from torchweld.ir.views import contiguous_strides
from torchweld.layout.channels import is_whole
from torchweld.passes.patches import may_be_product
from torchweld.targets.target import Target
from torchweld.templates.conv.gradient import BACKWARD, BIAS, without

_CALL = "aten.convolution.default"
_ADDMM, _MM = "aten.addmm.default", "aten.mm.default"


def separate_biases(graph: Graph, target: Target) -> Graph:
    """`graph` with biases added by Comps: of convolutions where no call but another convolution
    reads the result, and of small products. Gradients of the former are summed by Comps."""
    calls = (n for n in graph.nodes if isinstance(n, Extern) and n.target != _CALL)
    called = {name for n in calls for name in n.reads}
    buffers, nodes = dict(graph.buffers), []
    for node in graph.nodes:
        if isinstance(node, Extern) and node.target == BACKWARD:
            nodes += bias_gradient_apart(node, graph)
        elif _has_bias_apart(node, graph, called, target) or _is_small(node, graph, target):
            call, total = _parts(node, graph)
            nodes += call, total
            made = replace(graph.buffers[node.outputs[0]], name=call.outputs[0])
            buffers[made.name] = made
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _has_bias_apart(node: Node, graph: Graph, called: set[str], target: Target) -> bool:
    """ATen's own depthwise convolutions take it in before they round, but images go to cuDNN's
    (`channels.py`)."""
    if not isinstance(node, Extern) or node.target != _CALL or node.kwargs:
        return False
    _, weight, bias, _, _, _, transposed, _, groups = node.args
    result = graph.buffers.get(node.outputs[0])
    if result is None or result.name in called or not isinstance(bias, View):
        return False
    if not is_whole(bias, graph):
        return False
    if may_be_product(node, graph):
        return _waits_for_memory(weight, target)
    depthwise = groups != 1 and weight.shape[1] == 1 and not transposed
    alone = depthwise and len(weight.shape) != 4
    return not alone or not result.dtype.is_low_precision


def _waits_for_memory(weight: View, target: Target) -> bool:
    """Whether an image times a matrix of 16 bits is less arithmetic than traffic."""
    columns, depth = weight.shape[0], product(weight.shape[1:])
    flops_per_byte = depth * columns / (depth + columns)
    return flops_per_byte * target.dram_bytes_per_s < target.products.sustained


def _is_small(node: Node, graph: Graph, target: Target) -> bool:
    """A product of float32 that is faster without its bias, one number a column."""
    if not isinstance(node, Extern) or node.target != _ADDMM or node.kwargs:
        return False
    bias, left, _ = node.args
    result = graph.buffers[node.outputs[0]]
    row = len(bias.shape) == 1 and bias.shape == result.shape[1:] and is_whole(bias, graph)
    fma = hint(product((*result.shape, left.shape[1])), graph.hints)
    return row and result.dtype == dtypes.f32 and fma < target.products.bias_fma


def _parts(node: Extern, graph: Graph) -> tuple[Extern, Comp]:
    result = graph.buffers[node.outputs[0]]
    made = f"{result.name}_unbiased"
    if node.target == _ADDMM:
        bias, *factors = node.args
        call = replace(node, target=_MM, args=tuple(factors), outputs=(made,))
    else:
        image, weight, bias, *rest = node.args
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


# -- gradients --


def bias_gradient_apart(node: Extern, graph: Graph) -> list[Node]:
    """A call of convolution_backward without the bias's gradient, and a Comp that makes it; `node`
    alone where it makes none, and where the gradient that it is given is a window that rows and
    columns do not describe."""
    gradient = node.args[0]
    if node.outputs[BIAS] is None:
        return [node]
    parts = _parts_of(gradient, graph.buffers[gradient.buffer])
    if parts is None:
        return [node]
    total = _total(gradient.buffer, graph.buffers[node.outputs[BIAS]], parts, node, graph)
    return [*without(node, (BIAS,)), total]


def _parts_of(image: View, buffer: Buffer) -> tuple[int, int] | None:
    """Where the channels begin and end among the dimensions of an image's buffer, which may have
    more or fewer (groups of channels)."""
    if image == buffer.view:
        return 1, 2
    dense = image.strides == contiguous_strides(image.shape) and image.offset == 0
    if not dense or buffer.strides != contiguous_strides(buffer.shape):
        return None
    sizes = [product(buffer.shape[:d]) for d in range(len(buffer.shape) + 1)]
    ends = product(image.shape[:1]), product(image.shape[:2])
    if product(image.shape) != sizes[-1] or not all(n in sizes for n in ends):
        return None
    return sizes.index(ends[0]), sizes.index(ends[1])


def _total(
    image: str, result: Buffer, parts: tuple[int, int], node: Extern, graph: Graph
) -> Comp:
    """result[c] = sum of image[b, c, ...] over b and ..."""
    gradient, (begin, end) = graph.buffers[image], parts
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(gradient.shape))
    channels = axes[begin:end]
    body = BodyBuilder()
    value = body.widen(body.load(image, tuple(axis(a.name) for a in axes), gradient.dtype))
    summed = tuple(a.name for a in axes if a not in channels)
    if summed:  # the gradient of one pixel may be a scalar
        value = body.reduce("sum", (value,), summed)
    total = body.cast(value, result.dtype)
    place = constant(0)
    for a in channels:
        place = place * a.extent + axis(a.name)
    comp = Comp(f"{node.name}_bias", axes, body.body, (Store(result.name, (place,), total),),
                node.origins)  # fmt: skip
    return drop_unit_axes(comp)
