"""Stacks of what is computed from the same: all parts at one point.

    before: y[b, t, c] = f(x[b, 0, c]) if t < 1 else g(f(x[b, 0, c]), x[b, 1, c]) if t < 2 else ....
    after:  y[b, 0, c] = f(x[b, 0, c]);  y[b, 1, c] = g(y[b, 0, c], x[b, 1, c]);  ...

A recurrence that a loop unrolls is a stack of its steps. As a choice by the place along the stack,
each point computes every step, and reads all that they read. The parts lie along an axis that is
not contiguous in memory, so that threads beside each other still write what is adjacent. It comes
after the plan, which knows one result a point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchweld.ir.affine import constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Comp, Graph, Index, Load, Node, Op, Value, map_axes
from torchweld.ir.scalar import TABLE
from torchweld.ir.simplify import simplify
from torchweld.ir.substitute import move_store, substitute_axes, with_operands
from torchweld.passes.neighbours import lies_across, writes_each_point

_MOST_PARTS = 64
_MOST_INSTRUCTIONS = 1500  # of one kernel
_WORTH = 0.5  # of the work is left, at most


def stacks_at_once(graph: Graph) -> Graph:
    """`graph` with such kernels."""
    return replace(graph, nodes=tuple(_at_once(node, graph) for node in graph.nodes))


def _at_once(node: Node, graph: Graph) -> Node:
    if not isinstance(node, Comp) or not writes_each_point(node):
        return node
    for along in node.axes:
        if _is_stacked(node, along) and lies_across(node, along.name, graph.buffers):
            made = _parts(node, along)
            if _work(made) <= _WORTH * along.extent * _work(node):
                return made if len(made.body) <= _MOST_INSTRUCTIONS else node
    return node


def _is_stacked(comp: Comp, along: Axis) -> bool:
    """Whether the place along an axis is compared, and nothing that is read depends on it."""
    if not isinstance(along.extent, int) or not 1 < along.extent <= _MOST_PARTS:
        return False
    name = along.name
    if any(name in map_axes(i.index) for i in comp.body if isinstance(i, Load)):
        return False
    return any(isinstance(i, Index) and name in i.map.axes for i in comp.body)


def _parts(comp: Comp, along: Axis) -> Comp:
    """`comp` without that axis, with the results of all places along it."""
    work = BodyBuilder()
    stores = [s for place in range(along.extent) for s in _at(comp, along.name, place, work)]
    axes = tuple(a for a in comp.axes if a is not along)
    return simplify(replace(comp, axes=axes, body=work.body, stores=tuple(stores)))


def _at(comp: Comp, name: str, place: int, work: BodyBuilder) -> Iterator:
    """The stores at one place; what they store is written to `work`."""
    images = {name: constant(place)}
    values: list[Value] = []
    for instr in comp.body:
        moved = with_operands(substitute_axes(instr, images), values.__getitem__)
        values.append(work.emit(moved))
    return (move_store(s, values.__getitem__, images) for s in comp.stores)


def _work(comp: Comp) -> float:
    """Of a point, in units of one fused multiplication and addition."""
    return sum(TABLE[i.name].cost if isinstance(i, Op) else 1.0 for i in comp.body)
