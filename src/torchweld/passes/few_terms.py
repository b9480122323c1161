"""Reductions of a few terms that lie apart in memory, on a GPU: pointwise work.

    before: y[n, c, h, w] = sum over k of 2 of (k < 1 ? a[n, c, h, w] : b[n, c, h, w]) * p[n, k, c]
    after:  y[n, c, h, w] = a[n, c, h, w] * p[n, 0, c] + b[n, c, h, w] * p[n, 1, c]

As a reduction, a tile would have a lane for each term, and rows in an order that suits the terms.
What `stack` puts together and a sum takes apart is never chosen between. Terms side by side in
memory are left: a tile reads them in one piece. It comes after the plan, which takes a `stack` into
its reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir.access import Accesses, addressed
from torchweld.ir.contraction import contraction_of
from torchweld.ir.expand import expanded
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import Buffer, Comp, Graph, Node, Reduce
from torchweld.ir.simplify import simplify
from torchweld.ir.unroll import is_short, unrolled


def few_terms_written_out(graph: Graph) -> Graph:
    """`graph` with such reductions written out."""
    return replace(graph, nodes=tuple(_written_out(n, graph.buffers) for n in graph.nodes))


def _written_out(node: Node, buffers: Mapping[str, Buffer]) -> Node:
    if not isinstance(node, Comp) or not any(isinstance(i, Reduce) for i in node.body):
        return node
    comp = expanded(node)
    frame = frame_of(comp)
    if frame is None or frame.column_reductions or not is_short(comp, frame.columns):
        return node
    accesses = addressed(comp, buffers)
    if _side_by_side(accesses) or contraction_of(accesses) is not None:
        return node
    return simplify(unrolled(comp, frame.columns))


def _side_by_side(accesses: Accesses) -> bool:
    columns = accesses.frame.columns
    return any(a.offset.coefficient(c) == 1 for a in accesses.loads.values() for c in columns)
