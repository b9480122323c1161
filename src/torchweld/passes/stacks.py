"""Stacks of what is computed from the same: all parts at one point.

    before: y[b, t, c] = f(x[b, 0, c]) if t < 1 else g(f(x[b, 0, c]), x[b, 1, c]) if t < 2 else ....
    after:  y[b, 0, c] = f(x[b, 0, c]);  y[b, 1, c] = g(y[b, 0, c], x[b, 1, c]);  ...

A recurrence that a loop unrolls is a stack of its steps. As a choice by the place along the stack,
each point computes every step, and reads all that they read. The parts lie along an axis that is
not contiguous in memory, so that threads beside each other still write what is adjacent. Components
of a vector that are much work may be contiguous (cross products, turns of points): a thread makes
all of one vector, sums over its components included. It comes after the plan, which knows one
result a point.

A reduction of a stack (the mean of all steps) is left to read it from memory, if its elements are
costly: then the stack is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir.affine import axis
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
    operands,
    value_axes,
)
from torchweld.ir.scalar import TABLE
from torchweld.ir.simplify import drop_dead, simplify
from torchweld.ir.unroll import unrolled
from torchweld.ir.views import contiguous_strides
from torchweld.passes.neighbours import lies_across, writes_each_point
from torchweld.plan.inline import fresh

MOST_PARTS = 128  # on a CPU
_MOST_OF_A_THREAD = 64  # on a GPU
MOST_INSTRUCTIONS = 1500  # of one kernel
_WORTH = 0.5  # of the work is left, at most
_MUCH = 64.0  # of work at a point: about what an H100 does in the time that it moves 8 bytes
_MOST_COMPONENTS = 4  # of a vector in one thread: it writes whole sectors, one by one


def stacks_at_once(graph: Graph, beside: bool = False) -> Graph:
    """`graph` with such kernels. `beside`: also where something is read at each place of the stack.
    A GPU would have fewer threads for it."""
    nodes, buffers = [], dict(graph.buffers)
    taken = {n.name for n in graph.nodes} | buffers.keys()
    for node in graph.nodes:
        if isinstance(node, Comp):
            nodes += _at_once(node, buffers, taken, beside)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _at_once(
    comp: Comp, buffers: dict[str, Buffer], taken: set[str], beside: bool
) -> list[Comp]:
    if (made := _whole(comp, buffers, beside)) is not None:
        return [made]
    for along in comp.axes if not writes_each_point(comp) else ():
        if (split := _apart(comp, along, buffers, taken)) is not None:
            stack, rest, buffer = split
            buffers[buffer.name] = buffer
            return [stack, rest]
    return [comp]


def _whole(comp: Comp, buffers: Mapping[str, Buffer], beside: bool = False) -> Comp | None:
    """All parts of a stack at one point, if it is one and that is less work."""
    for along in comp.axes:
        if not _is_stacked(comp, along, MOST_PARTS if beside else _MOST_OF_A_THREAD):
            continue
        across = _lies_across(comp, along, buffers, beside)
        if across or _is_of_vectors(comp, along):
            made = simplify(unrolled(comp, (along.name,)))
            if work(made) <= _WORTH * along.extent * work(comp):
                return made if len(made.body) <= MOST_INSTRUCTIONS else None
    return None


def _is_stacked(comp: Comp, along: Axis, most: int = _MOST_OF_A_THREAD) -> bool:
    """Whether the place along an axis is compared."""
    if not isinstance(along.extent, int) or not 1 < along.extent <= most:
        return False
    return any(isinstance(i, Index) and along.name in i.map.axes for i in comp.body)


def _lies_across(
    comp: Comp, along: Axis, buffers: Mapping[str, Buffer], beside: bool
) -> bool:
    """Whether nothing is contiguous along the stack, and nothing that is read depends on it, or
    (`beside`) is at its place there: neighbours of it are windows, not stacks."""
    if not writes_each_point(comp):
        return False
    place = axis(along.name)
    reads = (e for i in comp.body if isinstance(i, Load) for e in i.index if along.name in e.axes)
    if any(not beside or e != place for e in reads):
        return False
    return lies_across(comp, along.name, buffers)


def _is_of_vectors(comp: Comp, along: Axis) -> bool:
    """Whether a thread may make all components of a vector: there is more to compute than to wait
    for in memory, where it writes them apart."""
    few = along.extent <= _MOST_COMPONENTS and work(comp) >= _MUCH
    return few and writes_each_point(comp, along.name)


def _apart(
    comp: Comp, along: Axis, buffers: Mapping[str, Buffer], taken: set[str]
) -> tuple[Comp, Comp, Buffer] | None:
    """The stack that `comp` reduces, what is left of `comp`, and the memory between them."""
    top = _stacked_value(comp, along.name) if _is_stacked(comp, along) else None
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
    saved = work(comp) - work(rest) - work(made) / along.extent
    return (made, rest, buffer) if saved >= _MUCH else None


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


def work(comp: Comp) -> float:
    """Of a point, in units of one fused multiplication and addition."""
    return sum(TABLE[i.name].cost if isinstance(i, Op) else 1.0 for i in comp.body)
