"""Gradients of what was read transposed, computed as they are to lie in memory.

    permute(view(bmm(a, b)), last two)   ->   view(bmm(b^T, a^T))

The gradient of `k` in `q @ k.transpose(-1, -2)` is such a product. Autograd copies a gradient that
is laid out otherwise than its tensor: a launch more, and 8 us of the host. Products read transposed
factors as they are.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten
Node = torch.fx.Node


def turn_gradients(gm: torch.fx.GraphModule) -> None:
    """Of a backward of known sizes, in place."""
    gradients = [n for n in gm.graph.output_node().args[0] if isinstance(n, Node)]
    products = {n: _turned_product(n) for n in dict.fromkeys(gradients)}
    found = [(n, product) for n, product in products.items() if product is not None]
    for gradient, product in found:
        _turn(gm.graph, gradient, product)
    if found:
        gm.graph.eliminate_dead_code()


def _turned_product(gradient: Node) -> Node | None:
    """The product, read by nothing else, whose last two dimensions `gradient` has the other way
    round."""
    if gradient.target is not aten.permute.default or not _known(gradient):
        return None
    node, dims = gradient.args
    rank = len(dims)
    if [d % rank for d in dims] != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    matrix = node.meta["val"].shape[-2:]
    while node.target is aten.view.default and len(node.users) == 1:
        node = node.args[0]
    if node.target is not aten.bmm.default or len(node.users) != 1 or not _known(node):
        return None
    return node if node.meta["val"].shape[1:] == matrix else None


def _known(node: Node) -> bool:
    value = node.meta.get("val")
    return value is not None and all(isinstance(n, int) for n in value.shape)


def _turn(graph: torch.fx.Graph, gradient: Node, product: Node) -> None:
    a, b = product.args
    shape = list(gradient.meta["val"].shape)
    with graph.inserting_before(gradient):
        factors = [graph.call_function(aten.permute.default, (n, [0, 2, 1])) for n in (b, a)]
        turned = graph.call_function(aten.bmm.default, tuple(factors))
        made = graph.call_function(aten.view.default, (turned, shape))
    for factor in factors:
        factor.meta["val"] = factor.args[0].meta["val"].transpose(1, 2)
    value = product.meta["val"]
    turned.meta = dict(product.meta, val=value.new_empty(value.transpose(1, 2).shape))
    made.meta = dict(gradient.meta, val=value.new_empty(shape))
    gradient.replace_all_uses_with(made)
