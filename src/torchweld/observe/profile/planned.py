"""Memory of torchweld's programs, from their plans: which buffers a graph holds while each node
runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchweld.ir.nodes import Graph, Node, views
from torchweld.observe.predict.work import buffer_meta
from torchweld.observe.profile.rows import Runs
from torchweld.observe.record.profile import Alive, Memory, Place
from torchweld.runtime.regions import region_name
from torchweld.templates.pointwise_reduce.price import bytes_of

_MOST_ALIVE = 100


@dataclass(frozen=True)
class _Life:
    """A buffer, from the node that makes it to the last that needs it, both included; -1: there
    before, so many nodes: there afterwards."""

    name: str
    bytes: int
    first: int
    last: int


def planned_memory(
    records: Sequence, runs: Runs, peak_bytes: int, resident_bytes: int
) -> Memory:
    """`runs`: of one step. `peak_bytes`: as measured, which leaves out what a recorded graph keeps
    between steps; what is alive is told of the graph that holds most."""
    fullest: tuple[int, list[Alive], str] = (0, [], "")
    levels: dict[str, int] = {}
    for record in records:
        graph, lives = record.graph, _lives(record.graph, record.kind == "backward")
        for at, node in enumerate(graph.nodes):
            held = [life for life in lives if life.first <= at <= life.last]
            region = region_name(graph.name, node.name)
            levels[region] = level = sum(life.bytes for life in held)
            if level > fullest[0]:
                fullest = level, _alive(held, graph), region
    known = [run for run in runs if run.task.region in levels]
    timeline = [(run.start_us, levels[run.task.region]) for run in known]
    at_us = next((run.start_us for run in known if run.task.region == fullest[2]), None)
    return Memory(max(peak_bytes, fullest[0]), resident_bytes, at_us, timeline, fullest[1])


def _lives(graph: Graph, frees_inputs: bool) -> list[_Life]:
    """Of what nodes make, and of a backward's inputs that are no parameters."""
    first: dict[str, int] = {}
    if frees_inputs:
        given = (name for name in graph.inputs if name and not graph.buffers[name].frozen)
        first.update(dict.fromkeys(given, -1))
    last: dict[str, int] = {}
    for at, node in enumerate(graph.nodes):
        for name in node.writes:
            if name not in graph.inputs:
                first.setdefault(name, at)
        last.update(dict.fromkeys((*node.reads, *node.writes), at))
    last.update(dict.fromkeys((v.buffer for v in views(graph.outputs)), len(graph.nodes)))
    return [_Life(n, bytes_of(graph.buffers[n], graph.hints), at, last.get(n, at))
            for n, at in first.items()]


def _alive(held: Sequence[_Life], graph: Graph) -> list[Alive]:
    makers = {name: node for node in reversed(graph.nodes) for name in node.writes}
    largest = sorted(held, key=lambda life: -life.bytes)[:_MOST_ALIVE]
    what = {life.name: str(buffer_meta(graph.buffers[life.name], graph)) for life in largest}
    return [Alive(life.bytes, what[life.name], _place(makers.get(life.name)), _role(life, graph))
            for life in largest]


def _place(node: Node | None) -> Place | None:
    """Of the last operation in the kernel."""
    if node is None or not node.origins:
        return None
    origin = node.origins[-1]
    return Place(origin.op, origin.module, origin.source)


def _role(life: _Life, graph: Graph) -> str:
    if life.first < 0:
        return "saved"
    return "output" if life.last == len(graph.nodes) else "temporary"
