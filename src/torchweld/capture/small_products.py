"""Products of matrices that are none: of one term each, and with a single column.

    [M, 1] x [1, N]          a * b, each element rounded once, as the library does
    [B, 1, 1] x [B, 1, N]    the same
    [B, M, 1] x [B, 1, N]    the same, later
    [M, K] x [K, 1]          sums of a * b, in float32 at least, on a GPU; a bias is added to these
    [B, 1, K] x [B, K, 1]    the same, wherever
    [B, M, K] x [B, K, 1]    the same, later

A linear layer with one result (a score, a gate, a value) is such a product, and so are the
gradients of its weight; `einsum` writes dot products of rows so. Attention of one query has outer
products as gradients. A library takes a tile of a matrix for each; here they are fused with what
is around. On a CPU, the library reads one matrix faster: 2048 x 2048 by one thread of a Zen 4 in
0.60 ms, as sums in 0.74 (bfloat16 0.27, 0.49). Of a batch it makes a product at a time: 64 of
256 x 128 take 3.6 ms, as sums 0.27.

Batches that chosen matrices, or their gradients, may be made of stay until those are found
(capture/experts.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

aten = torch.ops.aten


def product(a, b):
    """`a @ b` for such matrices [M, K] and [K, N], or batches of them; else the call stays."""
    if not a.is_floating_point() or a.dtype != b.dtype:
        return NotImplemented
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    if _is_one(depth) and (a.dim() == 2 or _is_one(rows) or _is_one(columns)):
        return a * b
    of_few = _is_one(rows) if a.dim() == 3 else a.device.type == "cuda"
    return _rounded_sums(_run, a, b, a.dtype) if _is_one(columns) and of_few else NotImplemented


def product_with_bias(bias, a, b, *, beta=1, alpha=1):
    """`beta * bias + alpha * (a @ b)`, rounded once, for a single column on a GPU."""
    plain = a.device.type == "cuda" and a.is_floating_point() and a.dtype == b.dtype
    if not (plain and _is_one(b.shape[-1])):
        return NotImplemented
    sums = _sums(_run, a, b, a.dtype)
    sums = sums if alpha == 1 else sums * alpha
    if beta == 0:
        return sums.to(a.dtype)
    added = bias.to(sums.dtype) if beta == 1 else bias.to(sums.dtype) * beta
    return (sums + added).to(a.dtype)


def _run(target, *args, **kwargs):
    return target(*args, **kwargs)


def _sums(call: Callable, a, b, dtype: torch.dtype):
    """[..., M, 1] of [..., M, K] and [..., K, 1] of `dtype`, not rounded yet, by `call(target,
    ...)`: on tensors, or on nodes of a graph."""
    kind = torch.promote_types(dtype, torch.float32)
    if kind != dtype:
        a, b = (call(aten._to_copy.default, t, dtype=kind) for t in (a, b))
    products = call(aten.mul.Tensor, a, call(aten.transpose.int, b, -1, -2))
    return call(aten.sum.dim_IntList, products, [-1], True)


def _rounded_sums(call: Callable, a, b, dtype: torch.dtype):
    made = _sums(call, a, b, dtype)
    is_wide = torch.promote_types(dtype, torch.float32) == dtype
    return made if is_wide else call(aten._to_copy.default, made, dtype=dtype)


def write_out_batches(gm: torch.fx.GraphModule) -> None:
    """Batches of outer products, and of products with a single column, of a graph in which chosen
    matrices are groups by now. Outer products that are added up by an index stay."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.bmm.default):
        a, b = (arg.meta.get("val") for arg in node.args)
        if a is None or b is None or not (a.is_floating_point() and a.dtype == b.dtype):
            continue
        added = any(user.target is aten.index_put.default for user in node.users)
        if _is_one(a.shape[2]) and not added:
            _replace(node, lambda add, a, b: add(aten.mul.Tensor, a, b))
        elif _is_one(b.shape[2]):
            _replace(node, partial(_rounded_sums, dtype=a.dtype))


def _replace(node: torch.fx.Node, make: Callable) -> None:
    """`make(add, *arguments)` in its place; `add(target, ...)` adds a node."""

    def add(target, *args, **kwargs) -> torch.fx.Node:
        made = node.graph.call_function(target, args, kwargs)
        given = (a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args)
        made.meta = {**node.meta, "val": target(*given, **kwargs)}
        return made

    with node.graph.inserting_before(node):
        node.replace_all_uses_with(make(add, *node.args))
    node.graph.erase_node(node)


def _is_one(extent) -> bool:
    """Known to be: a symbol would be guarded."""
    return isinstance(extent, int) and extent == 1


DECOMPOSITIONS = {
    aten.bmm.default: product,
    aten.mm.default: product,
    aten.addmm.default: product_with_bias,
}
