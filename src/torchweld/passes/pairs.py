"""Reductions of a few terms over what is made for pairs of points, on a GPU: pointwise work.

    before: t[n, m, k] = x[n, k] - y[m, k];  d[n, m] = sum over k of 3 of t[n, m, k]
    after:  t as before;  d[n, m] = (t[n, m, 0] + t[n, m, 1]) + t[n, m, 2]

The search then computes `t` in its reader, and distances in each reduction over them: without it,
a second reduction needs them in memory, though the points are few and the pairs many. Where what
is reduced comes from memory anyway, a tile reads its terms in one piece, and the reduction stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from torchweld.ir.expand import expanded
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import Buffer, Comp, Graph, Load, Node, Reduce, Scan
from torchweld.ir.simplify import simplify
from torchweld.ir.unroll import is_short, unrolled

_MOST_MAKERS = 16  # computations between the points and what is reduced


def pairs_written_out(graph: Graph) -> Graph:
    """`graph` with such reductions written out."""
    makers = {s.buffer: n for n in graph.nodes if isinstance(n, Comp) for s in n.stores}
    nodes = tuple(_written_out(n, makers, graph.buffers) for n in graph.nodes)
    return replace(graph, nodes=nodes)


def _written_out(node: Node, makers: Mapping[str, Comp], buffers: Mapping[str, Buffer]) -> Node:
    if not isinstance(node, Comp) or not any(isinstance(i, Reduce) for i in node.body):
        return node
    comp = expanded(node)
    frame = frame_of(comp)
    if frame is None or frame.column_reductions or not is_short(comp, frame.columns):
        return node
    results = sum(_elements(buffers[s.buffer]) for s in comp.stores)
    if not results or 2 * _points(comp, makers, buffers) > results:
        return node
    return simplify(unrolled(comp, frame.columns))


def _points(comp: Comp, makers: Mapping[str, Comp], buffers: Mapping[str, Buffer]) -> float:
    """Elements in memory from which pointwise work makes what `comp` reads. Infinite if other
    work is between."""
    todo, seen, read = list(_loads(comp)), set(), set()
    while todo:
        name = todo.pop()
        maker = makers.get(name)
        if maker is None:
            read.add(name)
        elif maker.name not in seen:
            seen.add(maker.name)
            if len(seen) > _MOST_MAKERS or any(isinstance(i, (Reduce, Scan)) for i in maker.body):
                return float("inf")
            todo += _loads(maker)
    return sum(_elements(buffers[n]) for n in read)


def _loads(comp: Comp) -> set[str]:
    return {i.buffer for i in comp.body if isinstance(i, Load)}


def _elements(buffer: Buffer) -> float:
    """Infinite if it is known at the call only."""
    known = all(isinstance(n, int) for n in buffer.shape)
    return prod(buffer.shape) if known else float("inf")
