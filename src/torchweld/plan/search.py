"""Which operations share a kernel: best first by the seconds that a move is predicted to save.

Moves: `Fuse` two kernels into one; `Repeat` a pointwise producer inside one consumer although it
stays for others; `Dissolve` a pointwise producer into all of its consumers. A move is priced when
it is found, checked again when its turn comes, and its neighbours are looked at anew when it is
done. Equal layers are priced once (`plan/evaluate.py`), long kernels in their
turn only (`plan/guess.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from heapq import heappop, heappush

from torchweld.core.options import Options
from torchweld.ir.memo import Memo
from torchweld.ir.nodes import Comp, Extern, Graph, Node, views
from torchweld.plan.cut import cut_if_better
from torchweld.plan.decisions import Cut, Decision, Plan, RefusalRecord
from torchweld.plan.evaluate import Evaluator
from torchweld.plan.explain import decisions_of
from torchweld.plan.flow import Flow, NodeId
from torchweld.plan.moves import Move, Mover
from torchweld.plan.names import kernel_names
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target
from torchweld.templates.attention.sums import is_nest

__all__ = ["Plan", "plan"]

Finder = Callable[[NodeId], Iterable[Move]]

_NEST = "torchweld.score_nest"
_SAME = 0.999  # a price that fell by less is still the best


def plan(
    graph: Graph, device: Target, options: Options, times: Mapping[str, int] | None = None
) -> Plan:
    """A graph of the same meaning in which every Comp is one kernel, and what was decided. `times`:
    buffers of a layer that stands for several, and for how many.

    Raises InvalidIR for a Comp that cannot be cut into kernels.
    """
    graph, nests = _nests_as_calls(graph)
    eager = options.numerics == "eager"
    framed, cuts = _framed(graph, Evaluator(graph.buffers, graph.hints, device, eager), options)
    if not options.fuse:
        return Plan(_finished(framed, framed.nodes, nests), tuple(cuts))
    flow = Flow(framed)
    mover = Mover(flow, Evaluator(framed.buffers, framed.hints, device, eager), times)
    _search(mover)
    finished = _finished(framed, tuple(flow.nodes[n] for n in flow.order()), nests)
    decisions = (_of_nest(d) for d in decisions_of(mover, finished))
    return Plan(finished, (*cuts, *decisions))


def _search(mover: Mover) -> None:
    """Single numbers first, which cost nothing where they are needed; then along the flow of data,
    then what shares inputs, then what only saves a launch: the other way round, kernels that have
    little in common would keep apart what passes data on."""
    _best_first(mover, mover.number_moves, mover.numbers_around)
    _best_first(mover, mover.moves_into, mover.moves_around)
    for sideways in (mover.sibling_moves, mover.companion_moves):
        _best_first(mover, sideways, lambda n, more=sideways: (*mover.moves_around(n), *more(n)))


def _best_first(mover: Mover, at_first: Finder, after: Finder) -> None:
    """Does the moves that `at_first` finds at each node, and those that `after` finds at the nodes
    that these make, always the one that saves most."""
    heap: list[tuple[float, int, Move]] = []
    for number in mover.flow.order():
        _push(heap, mover, at_first(number))
    while heap:
        saved, _, move = heappop(heap)
        now = mover.price(move)
        if isinstance(now, Refusal):
            _push(heap, mover, mover.instead_of(move))
            continue
        if now.saved_s < -saved * _SAME:
            _push(heap, mover, [now])
            continue
        for number in mover.do(now):
            _push(heap, mover, after(number))


def _push(heap: list, mover: Mover, moves: Iterable[Move]) -> None:
    for move in moves:
        heappush(heap, (-move.saved_s, mover.ticket(), move))


def _framed(graph: Graph, prices: Evaluator, options: Options) -> tuple[Graph, list[Cut]]:
    """`graph` with every Comp cut until it has a frame, and further where that is faster."""
    nodes: list[Node] = []
    buffers, cuts = dict(graph.buffers), []
    for node in graph.nodes:
        if not isinstance(node, Comp):
            nodes.append(node)
            continue
        device = graph.buffers[node.writes[0]].device
        pieces, between, saved = cut_if_better(node, prices, device, options.fuse)
        nodes += pieces
        buffers.update((b.name, b) for b in between)
        if len(pieces) > 1:
            cuts.append(Cut(node.name, tuple(p.name for p in pieces), saved * 1e6))
    return replace(graph, nodes=tuple(nodes), buffers=buffers), cuts


def _nests_as_calls(graph: Graph) -> tuple[Graph, dict[str, Comp]]:
    """`graph` with a call in the place of each score nest (plan/scores), and these by their names:
    such a Comp is a kernel already, and takes nothing in."""
    memo = Memo(graph.buffers)
    comps = (n for n in graph.nodes if isinstance(n, Comp))
    nests = {n.name: n for n in comps if memo.of("is a nest", (n,), lambda n=n: is_nest(n))}

    def call(nest: Comp) -> Extern:
        args = tuple(graph.buffers[name].view for name in nest.reads)
        return Extern(nest.name, _NEST, args, (), nest.writes)

    nodes = tuple(call(nests[n.name]) if n.name in nests else n for n in graph.nodes)
    return replace(graph, nodes=nodes), nests


def _of_nest(decision: Decision) -> Decision:
    """Why others stay apart from a score nest: that it stood for a call is a matter of this
    search."""
    if isinstance(decision, RefusalRecord) and decision.evidence == _NEST:
        evidence = "a kernel for attention takes in what is between its products"
        return replace(decision, reason=Reason.TEMPLATE, evidence=evidence)
    return decision


def _finished(graph: Graph, nodes: tuple[Node, ...], nests: Mapping[str, Comp]) -> Graph:
    """`graph` with `nodes`, the score nests among them, readable kernel names, and only the buffers
    that someone uses."""
    comps = [n for n in nodes if isinstance(n, Comp)]
    names = iter(kernel_names(comps, (n.name for n in nodes if not isinstance(n, Comp))))
    named = tuple(
        replace(n, name=next(names)) if isinstance(n, Comp) else nests.get(n.name, n)
        for n in nodes
    )
    used = {b for n in named for b in (*n.reads, *n.writes)}
    used |= {b for b in graph.inputs if b} | {v.buffer for v in views(graph.outputs)}
    buffers = {name: b for name, b in graph.buffers.items() if name in used}
    return replace(graph, nodes=named, buffers=buffers)
