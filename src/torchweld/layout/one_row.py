"""One-dimensional convolutions in 16 bits on a GPU as convolutions of images of one row.

    before: convolution x[n, c, l], w[o, c, 5], padding 2
    after:  convolution x[n, c, 1, l], w[o, c, 1, 5], padding (0, 2);  y is [n, o, 1, l]

ATen makes rows contiguous before it asks cuDNN, whatever their layout: only images may have their
channels innermost. On an H100 in bfloat16 rows take 0.3 to 0.5 of the time as images of one. What
is known of images (`channels.py`, products of pixels, chains) then holds for them, too. In training
the gradients read the rows as they are, so they stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import Comp, Extern, Graph, Node, View
from torchweld.ir.size import Size, hint, product
from torchweld.layout.channels import is_own_row, one_row
from torchweld.layout.coarse import coarsened
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import call_of
from torchweld.templates.conv.depthwise import is_depthwise
from torchweld.templates.gemm.price import Prices, has_grouped_kernels

_FEWEST = 8  # channels


def rows_as_images(
    graph: Graph, table: Target, loose_outputs: Iterable[int] = frozenset()
) -> Graph:
    """`graph` with such convolutions where they are predicted to be faster so."""
    if frozenset(loose_outputs):
        return graph
    for number, node in enumerate(graph.nodes):
        made = _with_image(number, graph) if _is_row(node, graph, table) else None
        if made is not None and _pays(node, made.nodes[number], made, table):
            graph = made
    return graph


def _is_row(node: Node, graph: Graph, table: Target) -> bool:
    """Whether it is such a convolution. Long windows in groups, which the library convolves one
    after the other, stay as they are for our kernels."""
    call = call_of(node)
    if call is None or len(call.image.shape) != 3 or is_depthwise(call):
        return False
    kinds = {graph.buffers[v.buffer].dtype for v in (call.image, call.weight)}
    wide = min(call.groups * call.channels, call.groups * call.results) >= _FEWEST
    if not wide or len(kinds) != 1 or not kinds <= TENSOR_DTYPES:
        return False
    apart = call.groups > 1 and not has_grouped_kernels(call)
    return not (apart and is_own_row(node, graph, table))


def _with_image(number: int, graph: Graph) -> Graph | None:
    """`graph` with the convolution of an image, whose result is one; None where someone reads that
    by computed indices."""
    node = graph.nodes[number]
    image, weight, bias, stride, padding, dilation, transposed, more, groups = node.args
    args = (one_row(image), one_row(weight), bias, (1, *stride), (0, *padding), (1, *dilation),
            transposed, (0, *more), groups)  # fmt: skip
    call, result = replace(node, args=args), graph.buffers[node.outputs[0]]
    batch, results, length = result.shape
    shape = (batch, results, 1, length)
    nodes = (*graph.nodes[:number], call, *graph.nodes[number + 1 :])
    made = coarsened(replace(graph, nodes=nodes), [(result.name, shape)])
    return made if made.buffers[result.name].shape == shape else None


def _pays(node: Extern, made: Extern, graph: Graph, table: Target) -> bool:
    """By the library's prices: a kernel of ours is taken where it is faster still. A row that no
    kernel makes is copied to the other layout. Windows of one place are products, which take in
    what follows them and each other."""
    prices, (image, weight, *_, groups) = Prices(graph, table), node.args
    if weight.shape[2] == 1 and groups == 1:
        return True
    copied_s = 0.0
    if not _is_made(image.buffer, graph.nodes):
        copied_s = table.launch_s + 2 * _bytes(image, graph) / table.dram_bytes_per_s
    return prices.call_s(made) + copied_s < prices.call_s(node)


def _is_made(buffer: str, nodes: Iterable[Node]) -> bool:
    return any(
        buffer in n.writes and (isinstance(n, Comp) or call_of(n) is not None) for n in nodes
    )


def _bytes(view: View, graph: Graph) -> int:
    shape: tuple[Size, ...] = view.shape
    return hint(product(shape), graph.hints) * graph.buffers[view.buffer].dtype.bytes
