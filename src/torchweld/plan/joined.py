"""The plan of a graph from those of its two parts (`capture/parts.py`).

    main:  a -> b -> c, returns c, s        last:  is given s, writes r
    whole: a -> b -> c -> (last's nodes, which read s where main made it), returns c
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.ir.nodes import Arg, Buffer, Graph, View
from torchweld.plan.decisions import Decision, Plan, renamed_decision
from torchweld.plan.inline import fresh
from torchweld.rewrite.flow import rename


@dataclass(frozen=True)
class Joined:
    """`last`: by the name of each node of the last part, the name that it had there, and those of
    its buffers that have other names now."""

    graph: Graph
    decisions: tuple[Decision, ...]
    last: Mapping[str, tuple[str, Mapping[str, str]]]


def joined(main: Plan, last: Plan, given: int) -> Joined | None:
    """The `last` part's nodes behind those of `main`, whose `given` last results it reads; None if
    one of these is not memory of the form that it was planned for."""
    made = _given(main.graph, last.graph, given)
    if made is None or main.graph.symbols != last.graph.symbols:
        return None
    taken = {*main.graph.buffers, *(n for n in main.graph.inputs if n)}
    taken.update(n.name for n in main.graph.nodes)
    inputs = {n for n in last.graph.inputs if n}
    own = {n: fresh(n, taken) for n in last.graph.buffers if n not in inputs}
    buffers = {a: b for a, b in {**own, **made}.items() if a != b}
    nodes, copies = [], {}
    for node in last.graph.nodes:
        names = {b: buffers[b] for b in (*node.reads, *node.writes) if b in buffers}
        new = replace(rename(node, names), name=fresh(node.name, taken))
        nodes.append(new)
        copies[new.name] = node.name, names
    now = {before: name for name, (before, _) in copies.items()}
    told = (renamed_decision(d, lambda name: now.get(name, name)) for d in last.decisions)
    graph = replace(
        main.graph,
        buffers=_all_buffers(main.graph, last.graph, buffers, made),
        nodes=(*main.graph.nodes, *nodes),
        inputs=_inputs(main.graph, last.graph, given),
        outputs=main.graph.outputs[: len(main.graph.outputs) - given],
    )
    return Joined(graph, (*main.decisions, *told), copies)


def _given(main: Graph, last: Graph, given: int) -> dict[str, str] | None:
    """The buffers of `main` that the last part is given, by their names there."""
    found = {}
    results = main.outputs[len(main.outputs) - given :]
    for name, result in zip(last.inputs[len(last.inputs) - given :], results, strict=True):
        if name is not None:
            if not _is_whole(result, main) or _form(last.buffers[name]) != _form(
                main.buffers[result.buffer]
            ):
                return None
            found[name] = result.buffer
    return found


def _is_whole(result: Arg, graph: Graph) -> bool:
    """Memory that the part has made, from end to end."""
    if not isinstance(result, View) or result.buffer in graph.inputs:
        return False
    buffer = graph.buffers[result.buffer]
    return result == View(buffer.name, buffer.shape, buffer.strides)


def _form(buffer: Buffer) -> tuple:
    return buffer.shape, buffer.strides, buffer.dtype, buffer.device


def _all_buffers(
    main: Graph, last: Graph, names: Mapping[str, str], made: Mapping[str, str]
) -> dict[str, Buffer]:
    """Inputs of both parts are as the last one knows them: `main` must not take those that it
    writes for parameters that stay."""
    found = dict(main.buffers)
    for name, buffer in last.buffers.items():
        if name not in made:
            found[names.get(name, name)] = replace(buffer, name=names.get(name, name))
    return found


def _inputs(main: Graph, last: Graph, given: int) -> tuple[str | None, ...]:
    """`main` may have constants behind the graph's own."""
    own = len(last.inputs) - given
    both = zip(main.inputs[:own], last.inputs[:own], strict=True)
    return (*(a or b for a, b in both), *main.inputs[own:])
