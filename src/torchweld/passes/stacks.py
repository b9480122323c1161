"""Stacks of what is computed from the same: all parts at one point.

    before: y[b, t, c] = f(x[b, 0, c]) if t < 1 else g(f(x[b, 0, c]), x[b, 1, c]) if t < 2 else ....
    after:  y[b, 0, c] = f(x[b, 0, c]);  y[b, 1, c] = g(y[b, 0, c], x[b, 1, c]);  ...

A recurrence that a loop unrolls is a stack of its steps. As a choice by the place along the stack,
each point computes every step, and reads all that they read. The parts lie along an axis that is
not contiguous in memory, so that threads beside each other still write what is adjacent. It comes
after the plan, which knows one result a point.

A reduction of a stack (the mean of all steps) is left to read it from memory, if its elements are
costly: then the stack is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Graph,
    Index,
    Load,
    Op,
    Reduce,
    Scan,
    Store,
    Value,
    map_axes,
    operands,
    value_axes,
)
from torchweld.ir.scalar import TABLE
from torchweld.ir.simplify import drop_dead, simplify
from torchweld.ir.substitute import move_store, substitute_axes, with_operands
from torchweld.ir.views import contiguous_strides
from torchweld.passes.neighbours import lies_across, writes_each_point
from torchweld.plan.inline import fresh

_MOST_PARTS = 64
_MOST_INSTRUCTIONS = 1500  # of one kernel
_WORTH = 0.5  # of the work is left, at most
_MEMORY = 64.0  # writing and reading an element takes as long as so many operations, at most


def stacks_at_once(graph: Graph) -> Graph:
    """`graph` with such kernels."""
    nodes, buffers = [], dict(graph.buffers)
    taken = {n.name for n in graph.nodes} | buffers.keys()
    for node in graph.nodes:
        if isinstance(node, Comp):
            nodes += _at_once(node, buffers, taken)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _at_once(comp: Comp, buffers: dict[str, Buffer], taken: set[str]) -> list[Comp]:
    if writes_each_point(comp):
        return [_whole(comp, buffers) or comp]
    for along in comp.axes:
        if (split := _apart(comp, along, buffers, taken)) is not None:
            stack, rest, buffer = split
            buffers[buffer.name] = buffer
            taken.update((stack.name, buffer.name))
            return [stack, rest]
    return [comp]


def _whole(comp: Comp, buffers: Mapping[str, Buffer]) -> Comp | None:
    """All parts of a stack at one point, if it is one and that is less work."""
    for along in comp.axes:
        if _is_stacked(comp, along) and lies_across(comp, along.name, buffers):
            made = _parts(comp, along)
            if _work(made) <= _WORTH * along.extent * _work(comp):
                return made if len(made.body) <= _MOST_INSTRUCTIONS else None
    return None


def _apart(
    comp: Comp, along: Axis, buffers: Mapping[str, Buffer], taken: set[str]
) -> tuple[Comp, Comp, Buffer] | None:
    """The stack that `comp` reduces, what is left of `comp`, and the memory between them."""
    top = _stacked_value(comp, along.name)
    if top is None:
        return None
    spans = value_axes(comp.body)[top]
    axes = sorted((a for a in comp.axes if a.name in spans), key=lambda a: a is not along)
    name = fresh(f"{comp.name}_steps", taken)
    shape = tuple(a.extent for a in axes)
    device = buffers[comp.writes[0]].device
    buffer = Buffer(name, shape, comp.body[top].dtype, contiguous_strides(shape), device)
    place = tuple(axis(a.name) for a in axes)
    stack = replace(comp, name=name, axes=tuple(axes), stores=(Store(name, place, top),))
    body = list(comp.body)
    body[top] = Load(name, place, buffer.dtype)
    rest = simplify(drop_dead(replace(comp, body=tuple(body))))
    made = _whole(drop_dead(stack), {**buffers, name: buffer})
    if made is None or any(isinstance(i, Index) and along.name in i.map.axes for i in rest.body):
        return None
    saved = _work(comp) - _work(rest) - _work(made) / along.extent
    return (made, rest, buffer) if saved >= _MEMORY else None


def _stacked_value(comp: Comp, name: str) -> Value | None:
    """The last choice by the place along an axis that depends on no reduction."""
    by_place, reduced, found = set[Value](), set[Value](), None
    axes = value_axes(comp.body)
    for value, instr in enumerate(comp.body):
        behind = set(operands(instr))
        if isinstance(instr, (Reduce, Scan)) or behind & reduced:
            reduced.add(value)
        elif (isinstance(instr, Index) and name in instr.map.axes) or behind & by_place:
            by_place.add(value)
            is_choice = isinstance(instr, Op) and instr.name == "where" and name in axes[value]
            found = value if is_choice and instr.dtype.is_float else found
    return found


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
