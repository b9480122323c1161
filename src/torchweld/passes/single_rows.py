"""Products of few results, on a GPU: sums. Batches of those with a single row or column:

    before: y = bmm(a, b)       a [B, 1, K], b [B, K, N]
    after:  comp y [b, n, k] { store y[b, 0, n] (sum over k of a[b, 0, k] * b[b, k, n]) }

Such are the scores and the result of attention with one query, where a kernel of attention does not
take them (the caller wants the scores). Each element of a matrix is used once, so that its bytes
are all that counts. The library wants matrices at equal distances, which heads inside rows of a
cache are not, so they are copied for it. A sum reads them where they lie, and is fused with
what is around: with a scale and a cast of keys before it, and with a softmax behind. It comes
after attention has taken its share.

And those of a few rows and columns, with a long depth: a sum for each result, all in one kernel,
which shares the depth among programs.

    before: y = bmm(a, b)       a [B, 3, K], b [B, K, 2]
    after:  comp y [b, k] { store y[b, 0, 0] (sum over k of a[b, 0, k] * b[b, k, 0]); ... }

Gradients of what moves points (`affine_grid`) and of layers with a few weights are such. A library
takes a tile of a matrix for each: 17 of 3 x 38448 x 2 in float32 took cuBLAS 1.04 ms on an H200.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Comp, Extern, Graph, Node
from torchweld.ir.size import Size
from torchweld.ir.unroll import unrolled
from torchweld.templates.gemm.comp import is_batched, is_product, operands_of, product_comp

_MOST_RESULTS = 16  # each a running sum of every thread
_LONG = 64  # terms of a sum for each result: what the library has no tile for


def single_rows_as_sums(graph: Graph) -> Graph:
    """`graph` with such products written out."""
    return replace(graph, nodes=tuple(_written_out(n, graph) for n in graph.nodes))


def _written_out(node: Node, graph: Graph) -> Node:
    if not isinstance(node, Extern) or not is_product(node):
        return node
    left, right = operands_of(node)
    if is_batched(node) and 1 in (left.shape[-2], right.shape[-1]):
        return product_comp(node, graph.buffers) or node
    few = _is_of_few_results(left.shape[-2], left.shape[-1], right.shape[-1])
    made = product_comp(node, graph.buffers) if few else None
    return node if made is None else unrolled(made, _of_results(made))


def _is_of_few_results(rows: Size, depth: Size, columns: Size) -> bool:
    if not all(isinstance(n, int) for n in (rows, depth, columns)):
        return False
    return rows * columns <= _MOST_RESULTS and depth >= _LONG * rows * columns


def _of_results(made: Comp) -> tuple[str, ...]:
    """Axes of the rows and columns of a product's Comp."""
    return tuple(a.name for a in made.axes if a.name[0] in "mn")
