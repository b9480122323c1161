"""Stacks of what is computed from the same: all parts at one point.

    before: y[b, t, c] = f(x[b, 0, c]) if t < 1 else g(f(x[b, 0, c]), x[b, 1, c]) if t < 2 else ....
    after:  y[b, 0, c] = f(x[b, 0, c]);  y[b, 1, c] = g(y[b, 0, c], x[b, 1, c]);  ...

A recurrence that a loop unrolls is a stack of its steps. As a choice by the place along the stack,
each point computes every step, and reads all that they read. The parts lie along an axis that is
not contiguous in memory, so that threads beside each other still write what is adjacent. Components
of a vector that are much work may be contiguous (cross products, turns of points): a thread makes
all of one vector, sums over its components included. It comes after the plan, which knows one
result a point.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Axis, Comp, Graph, Index, Load, Node, Op, map_axes
from torchweld.ir.scalar import TABLE
from torchweld.ir.simplify import simplify
from torchweld.ir.unroll import unrolled
from torchweld.passes.neighbours import lies_across, writes_each_point

_MOST_PARTS = 64
_MOST_INSTRUCTIONS = 1500  # of one kernel
_WORTH = 0.5  # of the work is left, at most
_MOST_COMPONENTS = 4  # of a vector in one thread: it writes whole sectors, one by one
_MUCH = 64  # of work at a point: about what an H100 does in the time that it moves 8 bytes


def stacks_at_once(graph: Graph) -> Graph:
    """`graph` with such kernels."""
    return replace(graph, nodes=tuple(_at_once(node, graph) for node in graph.nodes))


def _at_once(node: Node, graph: Graph) -> Node:
    for along in node.axes if isinstance(node, Comp) else ():
        if not _is_stacked(node, along):
            continue
        if _lies_across(node, along, graph) or _is_of_vectors(node, along):
            made = simplify(unrolled(node, (along.name,)))
            if _work(made) <= _WORTH * along.extent * _work(node):
                return made if len(made.body) <= _MOST_INSTRUCTIONS else node
    return node


def _is_stacked(comp: Comp, along: Axis) -> bool:
    """Whether the place along an axis is compared."""
    if not isinstance(along.extent, int) or not 1 < along.extent <= _MOST_PARTS:
        return False
    return any(isinstance(i, Index) and along.name in i.map.axes for i in comp.body)


def _lies_across(comp: Comp, along: Axis, graph: Graph) -> bool:
    """Whether nothing is contiguous along the stack, and nothing that is read depends on it."""
    if any(along.name in map_axes(i.index) for i in comp.body if isinstance(i, Load)):
        return False
    return writes_each_point(comp) and lies_across(comp, along.name, graph.buffers)


def _is_of_vectors(comp: Comp, along: Axis) -> bool:
    """Whether a thread may make all components of a vector: there is more to compute than to wait
    for in memory, where it writes them apart."""
    few = along.extent <= _MOST_COMPONENTS and _work(comp) >= _MUCH
    return few and writes_each_point(comp, along.name)


def _work(comp: Comp) -> float:
    """Of a point, in units of one fused multiplication and addition."""
    return sum(TABLE[i.name].cost if isinstance(i, Op) else 1.0 for i in comp.body)
