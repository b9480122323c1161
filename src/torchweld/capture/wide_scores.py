"""Scores of attention in 16 bits that forward and backward both make: float32 in the joint graph.

    s = bmm(q, k) * c;  m = max(s)              ->  s = wide_product(q, k) * c;  m = max(s)
    (s of 16 bits)                                  (s of float32)

Of each row, the forward keeps statistics of the scores, and the backward makes the scores again.
Both must make the same numbers: scores of 500 that only one of the two rounds to 16 bits are off by
0.25, and weights that are off by a quarter no longer add up to one. What is fused is decided for
each graph by itself, so that scores are alike in both must not hang on it: whatever holds them,
their type says how they are rounded.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from torchweld.capture.calls import add_call
from torchweld.capture.captured import INNER_CAST

aten = torch.ops.aten
NARROW = (torch.bfloat16, torch.float16)

_library = torch.library.Library("torchweld", "FRAGMENT")
_library.define(
    "wide_product(Tensor left, Tensor right) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


def _wide_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`torch.bmm` of factors of 16 bits, with its sums in float32. Of float64, in which plans are
    compared, it is float64."""
    kind = torch.promote_types(left.dtype, torch.float32)
    return torch.bmm(left.to(kind), right.to(kind))


def _wide_product_there(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """By tensor cores, which multiply 16 bits exactly and add up in float32."""
    if left.dtype not in NARROW:
        return _wide_product(left, right)
    return torch.bmm(left, right, out_dtype=torch.float32)


_library.impl("wide_product", _wide_product, "CompositeExplicitAutograd")
_library.impl("wide_product", _wide_product_there, "CUDA")
torch.library.register_fake("torchweld::wide_product", _wide_product)
WIDE_PRODUCT = torch.ops.torchweld.wide_product.default


def widen(nodes: Collection[Node], narrowed: Node | None) -> None:
    """Makes products of 16 bits among `nodes` float32, and what the others compute of them, up to
    casts. For readers that are not among `nodes`, it is narrowed again; where `narrowed` reads it,
    as eager rounds."""
    wide: dict[Node, Node] = {}
    for node in sorted(nodes):  # as the graph has them
        made = _again(node, wide)
        if made is not None:
            wide[node] = made
    for node, made in wide.items():
        readers = [u for u in node.users if u not in wide]
        if made.meta["val"].dtype == node.meta["val"].dtype:
            for reader in readers:
                reader.replace_input_with(node, made)
        else:
            _narrow_for(readers, node, made, narrowed)
    for node in reversed(wide):
        node.graph.erase_node(node)


def _again(node: Node, wide: dict[Node, Node]) -> Node | None:
    """The node over wide values, in front of it; None where it is as it was."""
    if node.target in _PRODUCTS and node.meta["val"].dtype in NARROW:
        return _PRODUCTS[node.target](node)
    if not any(a in wide for a in node.all_input_nodes):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda a: wide.get(a, a))
    return _made(node, node.target, args, **kwargs)


def _product(node: Node) -> Node:
    return _made(node, WIDE_PRODUCT, node.args)


def _product_and_more(node: Node) -> Node:
    """beta * bias + alpha * product"""
    bias, left, right = node.args
    alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))
    made = _made(node, WIDE_PRODUCT, (left, right))
    if alpha != 1:
        made = _made(node, aten.mul.Tensor, (made, alpha))
    if beta == 0:
        return made
    times = {} if beta == 1 else {"alpha": beta}
    return _made(node, aten.add.Tensor, (made, bias), **times)


_PRODUCTS = {aten.bmm.default: _product, aten.baddbmm.default: _product_and_more}


def _made(like: Node, target, args: tuple, **kwargs) -> Node:
    """A call in front of `like`, marked as that is."""
    made = add_call(like, target, args, **kwargs)
    made.meta = like.meta | {"val": made.meta["val"]}
    return made


def _narrow_for(readers: list[Node], node: Node, made: Node, narrowed: Node | None) -> None:
    """What `readers` saw as `node`, out of what was `made` instead."""
    for is_inner in (False, True):
        some = [r for r in readers if (r is not narrowed) == is_inner]
        if some:
            cast = _made(node, aten._to_copy.default, (made,), dtype=node.meta["val"].dtype)
            if is_inner:
                cast.meta[INNER_CAST] = True
            for reader in some:
                reader.replace_input_with(node, cast)
