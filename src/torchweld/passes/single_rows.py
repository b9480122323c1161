"""Batches of products with a single row or column, on a GPU: sums.

    before: y = bmm(a, b)       a [B, 1, K], b [B, K, N]
    after:  comp y [b, n, k] { store y[b, 0, n] (sum over k of a[b, 0, k] * b[b, k, n]) }

Such are the scores and the result of attention with one query, where a kernel of attention does not
take them (the caller wants the scores). Each element of a matrix is used once, so that its bytes
are all that counts. The library wants matrices at equal distances, which heads inside rows of a
cache are not, so they are copied for it. A sum reads them where they lie, and is fused with
what is around: with a scale and a cast of keys before it, and with a softmax behind. It comes
after attention has taken its share.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Extern, Graph, Node
from torchweld.templates.gemm.comp import is_batched, is_product, operands_of, product_comp


def single_rows_as_sums(graph: Graph) -> Graph:
    """`graph` with such products written out."""
    return replace(graph, nodes=tuple(_written_out(n, graph) for n in graph.nodes))


def _written_out(node: Node, graph: Graph) -> Node:
    if not isinstance(node, Extern) or not is_product(node) or not is_batched(node):
        return node
    left, right = operands_of(node)
    if 1 not in (left.shape[-2], right.shape[-1]):
        return node
    return product_comp(node, graph.buffers) or node
