"""Products of matrices that are none: of one term each, and batches of dot products.

    [M, 1] x [1, N]          a * b, each element rounded once, as the library does
    [B, 1, 1] x [B, 1, N]    the same
    [B, M, 1] x [B, 1, N]    the same, later
    [B, 1, K] x [B, K, 1]    sum of a * b, in float32 at least

`einsum` writes dot products of rows so, and autograd their gradients; attention of one query has
outer products as gradients. A library takes a tile of a matrix for each; here they are fused with
what is around. Batches of outer products stay until gradients of chosen matrices, which are made of
them, have been found (capture/experts.py).
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def product(a, b):
    """`a @ b` for such matrices [M, K] and [K, N], or batches of them; else the call stays."""
    if not a.is_floating_point() or a.dtype != b.dtype:
        return NotImplemented
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    if _is_one(depth) and (a.dim() == 2 or _is_one(rows) or _is_one(columns)):
        return a * b
    if a.dim() == 3 and _is_one(rows) and _is_one(columns):
        kind = torch.promote_types(a.dtype, torch.float32)
        sums = (a[:, 0].to(kind) * b[:, :, 0].to(kind)).sum(-1)
        return sums.to(a.dtype)[:, None, None]
    return NotImplemented


def write_out_outer(gm: torch.fx.GraphModule) -> None:
    """Batches of outer products of a graph in which chosen matrices are groups by now: a * b too.
    Those that are added up by an index stay."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.bmm.default):
        a, b = node.args
        value = a.meta.get("val")
        if value is None:
            continue
        added = any(user.target is aten.index_put.default for user in node.users)
        if _is_one(value.shape[2]) and value.is_floating_point() and not added:
            with gm.graph.inserting_before(node):
                made = gm.graph.call_function(aten.mul.Tensor, (a, b))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            gm.graph.erase_node(node)


def _is_one(extent) -> bool:
    """Known to be: a symbol would be guarded."""
    return isinstance(extent, int) and extent == 1


DECOMPOSITIONS = {aten.bmm.default: product, aten.mm.default: product}
