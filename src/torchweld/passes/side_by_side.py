"""Kernels that do the same to different tensors of the caller, in one launch: the update of every
parameter by an optimiser.

    x0 = f(x0, g0);  x1 = f(x1, g1);  ...   ->   one kernel over all elements of x0, x1, ...

They may be of different lengths: each block of threads finds its tensor
(templates/multi_tensor/schedule.py).
Nothing lives longer: what they read and write is the caller's, or a single number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer, Comp, Graph, Node
from torchweld.ir.nodes import views as views_in
from torchweld.ir.size import product
from torchweld.ir.substitute import move_store, rename_axes, with_operands
from torchweld.plan.flow import Flow, NodeId
from torchweld.templates.multi_tensor.schedule import flat

MOST_TENSORS = 240  # of a launch: a GPU's kernel takes 256 arguments from runtime/launch_table.py


def side_by_side(graph: Graph, options: Options) -> Graph:
    """`graph` with such kernels made one Comp of several parts (ir/parts.py)."""
    if not options.fuse:
        return graph
    flow = Flow(graph)
    groups = list(_groups(graph, flow))
    return _grouped(graph, flow, groups) if groups else graph


def _groups(graph: Graph, flow: Flow) -> Iterator[tuple[NodeId, ...]]:
    """Nodes of one launch each. Those at the same depth do not wait for each other."""
    theirs = {n for n in graph.inputs if n} | {v.buffer for v in views_in(graph.outputs)}
    depth, alike = _depths(flow), defaultdict(list)
    for number, node in flow.nodes.items():
        if isinstance(node, Comp) and _is_on_theirs(node, graph, theirs):
            row = flat(node, graph.buffers)
            if row is not None:
                alike[depth[number], row.key].append((number, len(row.tensors)))
    for rows in alike.values():
        most = max(1, MOST_TENSORS // rows[0][1])
        numbers = [number for number, _ in rows]
        chunks = (tuple(numbers[k : k + most]) for k in range(0, len(numbers), most))
        yield from (c for c in chunks if len(c) > 1)


def _depths(flow: Flow) -> dict[NodeId, int]:
    """Nodes on the longest path that ends before each."""
    found: dict[NodeId, int] = {}
    for number in flow.order():
        found[number] = max((found[n] + 1 for n in flow.before[number]), default=0)
    return found


def _is_on_theirs(comp: Comp, graph: Graph, theirs: set[str]) -> bool:
    touched = (graph.buffers[b] for b in (*comp.reads, *comp.writes))
    return all(b.name in theirs or _is_number(b) for b in touched)


def _is_number(buffer: Buffer) -> bool:
    return product(buffer.shape) == 1


def _grouped(graph: Graph, flow: Flow, groups: list[tuple[NodeId, ...]]) -> Graph:
    """In the order of old, but that a group runs when all that it waits for has run."""
    group_of = {n: group for group in groups for n in group}
    done: set[NodeId] = set()
    nodes: list[Node] = []

    def run(number: NodeId) -> None:
        if number in done:
            return
        members = group_of.get(number, (number,))
        for before in sorted({b for n in members for b in flow.before[n]}):
            run(before)
        done.update(members)
        nodes.append(_joined([flow.nodes[n] for n in members]))

    for number in flow.order():
        run(number)
    return replace(graph, nodes=tuple(nodes))


def _joined(comps: list[Node]) -> Node:
    """All of them as one Comp, with the name of the first."""
    if len(comps) == 1:
        return comps[0]
    axes, body, stores, origins = [], [], [], []
    for k, comp in enumerate(comps):
        apart, start = rename_axes(comp, {a.name: f"{a.name}_of{k}" for a in comp.axes}), len(body)
        body += [with_operands(i, lambda v, start=start: v + start) for i in apart.body]
        stores += [move_store(s, lambda v, start=start: v + start, {}) for s in apart.stores]
        axes += apart.axes
        origins += comp.origins
    unique = tuple(dict.fromkeys(origins))
    return Comp(comps[0].name, tuple(axes), tuple(body), tuple(stores), unique)
