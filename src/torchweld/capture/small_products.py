"""Products of matrices that are none, or are one: of a few terms each, with a single column, and of
a batch with one matrix.

    [M, 1] x [1, N]          a * b, each element rounded once, as the library does
    [B, 1, 1] x [B, 1, N]    the same
    [B, M, 1] x [B, 1, N]    the same, later
    [M, 3] x [3, 3]          a[:, 0] * b[0] + a[:, 1] * b[1] + a[:, 2] * b[2], and with up to four
                             terms and four rows or columns; a bias is added to these
    [B, M, 3] x [B, 3, 3]    the same, later
    [M, K] x [K, 1]          sums of a * b, in float32 at least, on a GPU; a bias is added to these
    [B, 1, K] x [B, K, 1]    the same, wherever
    [B, M, K] x [B, K, 1]    the same, later
    [B, M, K] x a [K, N]     [B * M, K] x [K, N], later

A linear layer with one result (a score, a gate, a value) is such a product, and so are the
gradients of its weight; `einsum` writes dot products of rows so. Attention of one query has outer
products as gradients. A library takes a tile of a matrix for each; here they are fused with what is
around. On a CPU, the library reads one matrix faster: 2048 x 2048 by one thread of a Zen 4 in 0.60
ms, as sums in 0.74 (bfloat16 0.27, 0.49). Of a batch it makes a product at a time: 64 of 256 x 128
take 3.6 ms, as sums 0.27. A linear layer on images whose channels lie first becomes a batch of
products with an expanded matrix in eager, which copies nothing for it. Here a copy is another
layout of what made the image, and one product has an epilogue and a fast call (ResMLP on an H100:
12 batches took 400 of 768 us; on one thread of a Zen 4, 50 of 8 x 192 x 576 1425 us in float32 and
5375 in bfloat16, as one product behind a copy 871 and 418). Turns and projections of points are
products of a few terms: 640000 x 3 x 3 took cuBLAS 60 us on an H100, ten times as long as its
bytes.

Batches that chosen matrices, or their gradients, may be made of stay until those are found
(capture/experts.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from torchweld.capture.torch_private import is_view

aten = torch.ops.aten

_FEW = 4  # terms of an element, and rows or columns
# The same of a batch on a GPU: of 4096 products of 5 x 4 x 1024, 4 x 5 x 1024 and 5 x 1024 x 4
# (streams of hyper-connections, in training), some took cuBLAS's magma_sgemmEx 684 us on an H200,
# others kernels of ours for matrices 561. Which took how long was not looked into.
_FEW_THERE = 8
_MANY = 32  # columns or rows of one matrix beside them: a smaller one is no work for anybody


def product(a, b):
    """`a @ b` for such matrices [M, K] and [K, N], or batches of them; else the call stays."""
    if not a.is_floating_point() or a.dtype != b.dtype:
        return NotImplemented
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    if a.dim() == 2 and _is_of_few(a, b):
        return _rounded_terms(_run, a, b, a.dtype)
    if _is_one(depth) and (a.dim() == 2 or _is_one(rows) or _is_one(columns)):
        return a * b
    of_few = _is_one(rows) if a.dim() == 3 else a.device.type == "cuda"
    return _rounded_sums(_run, a, b, a.dtype) if _is_one(columns) and of_few else NotImplemented


def product_with_bias(bias, a, b, *, beta=1, alpha=1):
    """`beta * bias + alpha * (a @ b)`, rounded once, for a few terms, or a single column on a
    GPU."""
    plain = a.is_floating_point() and a.dtype == b.dtype
    few = plain and _is_of_few(a, b)
    if not few and not (plain and a.device.type == "cuda" and _is_one(b.shape[-1])):
        return NotImplemented
    sums = (_terms if few else _sums)(_run, a, b, a.dtype)
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


def _is_of_few(a, b) -> bool:
    """Whether each element has a few terms, and one of the sides a few rows or columns, but there
    are many elements."""
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    most = _FEW_THERE if a.dim() > 2 and a.device.type == "cuda" else _FEW
    if not _is_few(depth, most) or not (_is_few(rows, most) or _is_few(columns, most)):
        return False
    return a.dim() > 2 or any(not isinstance(n, int) or n >= _MANY for n in (rows, columns))


def _is_few(extent, most: int) -> bool:
    return isinstance(extent, int) and 1 <= extent <= most


def _terms(call: Callable, a, b, dtype: torch.dtype):
    """[..., M, N] of [..., M, K] and [..., K, N] of `dtype`, not rounded yet, term by term."""
    kind = torch.promote_types(dtype, torch.float32)
    if kind != dtype:
        a, b = (call(aten._to_copy.default, t, dtype=kind) for t in (a, b))
    depth = (a.meta["val"] if isinstance(a, torch.fx.Node) else a).shape[-1]
    total = None
    for k in range(depth):
        column = call(aten.slice.Tensor, a, -1, k, k + 1)
        row = call(aten.slice.Tensor, b, -2, k, k + 1)
        term = call(aten.mul.Tensor, column, row)
        total = term if total is None else call(aten.add.Tensor, total, term)
    return total


def _rounded_terms(call: Callable, a, b, dtype: torch.dtype):
    return _rounded(call, _terms(call, a, b, dtype), dtype)


def _rounded_sums(call: Callable, a, b, dtype: torch.dtype):
    return _rounded(call, _sums(call, a, b, dtype), dtype)


def _rounded(call: Callable, made, dtype: torch.dtype):
    """What has `dtype`, or is wider."""
    is_wide = torch.promote_types(dtype, torch.float32) == dtype
    return made if is_wide else call(aten._to_copy.default, made, dtype=dtype)


def write_out_batches(gm: torch.fx.GraphModule) -> None:
    """Batches of outer products, and of products of a few terms or a single column, of a graph in
    which chosen matrices are groups by now. Products that are added up by an index stay."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.bmm.default):
        a, b = (arg.meta.get("val") for arg in node.args)
        if a is None or b is None or not (a.is_floating_point() and a.dtype == b.dtype):
            continue
        added = any(user.target is aten.index_put.default for user in node.users)
        if _is_one(a.shape[2]) and not added:
            _replace(node, lambda add, a, b: add(aten.mul.Tensor, a, b))
        elif _is_one(b.shape[2]):
            _replace(node, partial(_rounded_sums, dtype=a.dtype))
        elif _is_of_few(a, b) and not added:
            _replace(node, partial(_rounded_terms, dtype=a.dtype))
        elif _have_one_weight(*node.args) and (_folds(a) or _given(node.args[0]) is None):
            _replace(node, _with_one_matrix)


def _have_one_weight(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Whether all products of a batch are with the same matrix, which is given as one: keys that
    heads share belong to attention."""
    values, weight = (a.meta["val"], b.meta["val"]), _given(b)
    known = all(isinstance(n, int) for v in values for n in (*v.shape, *v.stride()))
    if weight is None or not known:
        return False
    return values[1].stride(0) == 0 and values[1].shape[0] > 1 and weight.meta["val"].dim() == 2


def _folds(a) -> bool:
    """Whether the rows of all matrices are at equal distances."""
    return a.stride(0) == a.stride(1) * a.shape[1]


def _given(node: torch.fx.Node) -> torch.fx.Node | None:
    """What the caller gives, of which it is a view; None of what is computed."""
    while is_view(node):
        node = node.args[0]
    return node if node.op == "placeholder" else None


def _with_one_matrix(add: Callable, a: torch.fx.Node, b: torch.fx.Node) -> torch.fx.Node:
    batch, rows, depth = a.meta["val"].shape
    if not _folds(a.meta["val"]):
        a = add(aten.clone.default, a, memory_format=torch.contiguous_format)
    made = add(aten.mm.default, add(aten.view.default, a, [batch * rows, depth]),
               add(aten.select.int, b, 0, 0))  # fmt: skip
    return add(aten.view.default, made, [batch, rows, made.meta["val"].shape[1]])


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
