"""Recurrences that a loop unrolls, on a CPU: a stack and all of its steps as one kernel.

    before: s0[b] = f(x[b, 0]);  s1[b] = g(s0[b], x[b, 1]);  ...;  y[b, t] = st[b]
    after:  s0 = f(x[b, 0]);  y[b, 0] = s0;  s1 = g(s0, x[b, 1]);  y[b, 1] = s1;  ...

The planner joins two kernels at a time. A step is read by the steps after it and by the stack, so
that each pair has others between it, and what reads every step as a choice by the place along the
stack would be as much work as there are steps. Here the stack is written out first. Each step then
is a reader's only maker, from the last to the first. It is all of them or none: where something
else is between two steps, such as a product, the stack stays as it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from torchweld.core.options import Options
from torchweld.ir.nodes import Axis, Comp, Graph, Index, Load, Reduce, Scan, map_axes
from torchweld.ir.simplify import simplify
from torchweld.ir.size import Size, product
from torchweld.ir.unroll import unrolled
from torchweld.passes.neighbours import stores_plainly
from torchweld.passes.stacks import MOST_INSTRUCTIONS, MOST_PARTS, work
from torchweld.plan.flow import Flow, NodeId
from torchweld.plan.legality import order_refusal
from torchweld.plan.merge import Rules, merge

_WORTH = 0.5  # of the work is left, at most
_MOST_SUMS = 8  # of a kernel, beside each other: each is a vector in a register, or several


def steps_with_stacks(graph: Graph, options: Options) -> Graph:
    """`graph` with such kernels."""
    if not options.fuse:
        return graph
    made = graph
    for comp in graph.nodes:
        stack = _written_out(comp, graph) if isinstance(comp, Comp) else None
        if stack is not None:
            made = _joined(made, comp, stack, options)
    return made


def _written_out(comp: Comp, graph: Graph) -> Comp | None:
    """The stack with all parts at one point, if it is one. It may be reduced along other axes, one
    sum for each part."""
    scans = any(isinstance(i, Scan) for i in comp.body)
    if scans or not stores_plainly(comp) or graph.buffers[comp.writes[0]].device != "cpu":
        return None
    reduces = any(isinstance(i, Reduce) for i in comp.body)
    most = _MOST_SUMS if reduces else MOST_PARTS
    along = next((a for a in comp.axes if _is_chosen(comp, a, most)), None)
    if along is None or along.extent * len(comp.body) > MOST_INSTRUCTIONS * MOST_PARTS:
        return None
    made = simplify(unrolled(comp, (along.name,)))
    less = work(made) <= _WORTH * along.extent * work(comp)
    return made if less and len(made.body) <= MOST_INSTRUCTIONS else None


def _is_chosen(comp: Comp, along: Axis, most: int) -> bool:
    """Whether the place along an axis is compared, nothing that is read depends on it, and each
    store does."""
    if not isinstance(along.extent, int) or not 1 < along.extent <= most:
        return False
    if any(isinstance(i, Reduce) and along.name in i.axes for i in comp.body):
        return False
    if any(along.name not in map_axes(s.index) for s in comp.stores):
        return False
    reads = (e for i in comp.body if isinstance(i, Load) for e in i.index)
    compared = any(isinstance(i, Index) and along.name in i.map.axes for i in comp.body)
    return compared and not any(along.name in e.axes for e in reads)


def _joined(graph: Graph, comp: Comp, stack: Comp, options: Options) -> Graph:
    """`graph` with `comp` as `stack` and all its steps; as it was if one of them is left."""
    flow = Flow(graph)
    number = flow.replace(graph.nodes.index(comp), stack)
    while steps := _steps(flow, number):
        found = ((n, _merged(flow, n, number, graph, options)) for n in steps)
        first, made = next(((n, m) for n, m in found if m is not None), (None, None))
        if made is None:
            return graph
        number = flow.merge(first, number, made)
    if len(_left(flow, number, graph)) > 1:
        return graph
    return replace(graph, nodes=tuple(flow.nodes[n] for n in flow.order()))


def _left(flow: Flow, number: NodeId, graph: Graph) -> list[str]:
    """What others have made for one step each. A first state may be among it."""
    node = flow.nodes[number]
    points = product(a.extent for a in node.axes)
    made = (b for b in node.reads if flow.writers.get(b))
    return [b for b in made if product(graph.buffers[b].shape) == points]


def _steps(flow: Flow, number: NodeId) -> list[NodeId]:
    """The pointwise kernels over the same points that make what a node reads, last ones first."""
    node = flow.nodes[number]
    makers = {w for b in node.reads for w in flow.writers[b]}
    alike = [n for n in makers if _is_step(flow.nodes[n], _extents(node))]
    place = {n: k for k, n in enumerate(flow.order())}
    return sorted(alike, key=place.get, reverse=True)


def _extents(comp: Comp) -> Counter[Size]:
    return Counter(a.extent for a in comp.axes)  # which have no order: some are symbols


def _is_step(node: object, extents: Counter[Size]) -> bool:
    if not isinstance(node, Comp) or any(isinstance(i, (Reduce, Scan)) for i in node.body):
        return False
    plain = all(s.combine is None and s.guard is None for s in node.stores)
    return plain and _extents(node) == extents


def _merged(
    flow: Flow, first: NodeId, second: NodeId, graph: Graph, options: Options
) -> Comp | None:
    """Both as one kernel that computes nothing twice, if they can be."""
    one, other = flow.nodes[first], flow.nodes[second]
    touched = {*one.reads, *one.writes, *other.writes}
    if order_refusal(flow, first, second) or any(map(flow.is_mutated, touched)):
        return None
    keep = frozenset(b for b in one.writes if flow.is_needed_after(b, second))
    shapes = {n: graph.buffers[n].shape for n in (*one.reads, *one.writes)}
    made = merge(one, other, Rules(keep, shapes, options.numerics == "eager"))
    if not isinstance(made, Comp) or len(made.body) > MOST_INSTRUCTIONS:
        return None
    return made if work(made) <= work(one) + work(other) else None
