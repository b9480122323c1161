"""Comps that store no elements, so that they read none: what they would read may not exist, and
a kernel loads outside of a loop what is the same at all of its points."""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.affine import axis
from torchweld.ir.nodes import Axis, Comp, Const, Graph, Load, Store


def read_nothing_for_nothing(graph: Graph) -> Graph:
    """Comps whose results are empty store a number, of their results' shape and type."""
    nodes = (_without_reads(n, graph) if isinstance(n, Comp) else n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _without_reads(comp: Comp, graph: Graph) -> Comp:
    results = [graph.buffers[s.buffer] for s in comp.stores]
    shapes = {tuple(b.shape) for b in results}
    reads = any(isinstance(i, Load) for i in comp.body)
    if not reads or len(shapes) != 1 or 0 not in min(shapes):
        return comp
    axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(min(shapes)))
    index = tuple(axis(a.name) for a in axes)
    body = tuple(Const(0, b.dtype) for b in results)
    stores = tuple(Store(b.name, index, value) for value, b in enumerate(results))
    return replace(comp, axes=axes, body=body, stores=stores)
