"""Fusions checked by the clock: a kernel that measures slower than the two it came from is cut.

`Measure` is handed candidates that do the same work and gives the seconds of each. A candidate is a
Graph whose inputs are the buffers that it reads and whose outputs are the buffers that it writes;
its symbols have the values of their hints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchweld.ir.nodes import Comp, Graph, Node, View
from torchweld.plan.decisions import Cut
from torchweld.plan.moves import Mover, Piece

Measure = Callable[[list[Graph]], list[float]]

_NOISE = 1.03  # a cut must win by more


def fission(
    graph: Graph, pieces: list[Piece], mover: Mover, measure: Measure
) -> tuple[tuple[Node, ...], list[Cut]]:
    """The nodes of `graph`, those cut that are faster so, and a record of each cut.

    `pieces` say how the nodes came to be, in the same order. Kernels that differ only in names are
    measured once.
    """
    nodes: list[Node] = []
    cuts: list[Cut] = []
    answers: dict[tuple[int, ...], float] = {}
    for node, piece in zip(graph.nodes, pieces):
        parts, saved_s = _best(piece, graph, mover, measure, answers)
        nodes += [node] if parts == [piece.node] else parts
        if len(parts) > 1:
            cuts.append(Cut(node.name, tuple(p.name for p in parts), saved_s * 1e6))
    return tuple(nodes), cuts


def _best(piece: Piece, graph: Graph, mover: Mover, measure: Measure, answers) -> tuple:
    """The kernels to use for `piece`, and the seconds that they save against one kernel."""
    if not piece.parts:
        return [piece.node], 0.0
    halves = [p.node for p in piece.parts]
    key = tuple(mover.prices.signatures.of(n).number for n in (piece.node, *halves))
    if key not in answers:
        whole_s, cut_s = measure([_alone([piece.node], graph, mover), _alone(halves, graph, mover)])
        answers[key] = whole_s - cut_s if cut_s * _NOISE < whole_s else 0.0
    if answers[key] <= 0:
        return [piece.node], 0.0
    found = [_best(p, graph, mover, measure, answers) for p in piece.parts]
    return [n for parts, _ in found for n in parts], answers[key] + sum(s for _, s in found)


def _alone(comps: list[Comp], graph: Graph, mover: Mover) -> Graph:
    """A graph of `comps` only."""
    written = tuple(dict.fromkeys(b for c in comps for b in c.writes))
    read = tuple(dict.fromkeys(b for c in comps for b in c.reads if b not in written))
    buffers = {name: mover.prices.buffers[name] for name in (*read, *written)}
    outputs = tuple(View(b, buffers[b].shape, buffers[b].strides) for b in written)
    return replace(graph, buffers=buffers, nodes=tuple(comps), inputs=read, outputs=outputs)
