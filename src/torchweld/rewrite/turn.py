"""Axes that run backwards over what a row computes, turned round: then a flip can be done in the
kernel that scans or reduces the row, by where it writes.

    y[i, 5-j] = x[i, j] scanned along j;  z[i, j] = y[i, 5-j]   ->   z[i, 5-j] = y[i, j]
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Axis, Comp, Graph, Load, Reduce, Scan
from torchweld.ir.substitute import substitute_comp


def turn_axes(graph: Graph) -> Graph:
    """Pointwise Comps that read results of reductions or scans backwards write backwards
    instead."""
    rows: set[str] = set()
    nodes = []
    for node in graph.nodes:
        if isinstance(node, Comp):
            if any(isinstance(i, (Reduce, Scan)) for i in node.body):
                rows.update(node.writes)
            else:
                node = _turned(node, rows)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _turned(comp: Comp, rows: set[str]) -> Comp:
    backwards = [a for a in comp.axes if _runs_backwards(comp, a, rows)]
    if not backwards:
        return comp
    images = {a.name: affine.axis(a.name) * -1 + (a.extent - 1) for a in backwards}
    return substitute_comp(comp, comp.axes, images)


def _runs_backwards(comp: Comp, axis: Axis, rows: set[str]) -> bool:
    """All that is read of `rows` along the axis is read from its end."""
    loads = (i for i in comp.body if isinstance(i, Load) and i.buffer in rows)
    along = [
        entry.coefficient(axis.name)
        for load in loads
        for entry in load.index
        if isinstance(entry, Affine) and axis.name in entry.axes
    ]
    return bool(along) and all(isinstance(c, int) and c < 0 for c in along)
