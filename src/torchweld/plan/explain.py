"""The plan told: what was fused and gained, and for each pair that still exchanges data through
memory, why."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir.nodes import Comp, Extern, Graph
from torchweld.plan.decisions import Fusion, RefusalRecord
from torchweld.plan.flow import NodeId
from torchweld.plan.moves import Move, Mover
from torchweld.plan.refusals import Reason, Refusal
from torchweld.templates.pointwise_reduce.price import bytes_of
from torchweld.templates.traffic import node_bytes


def decisions_of(mover: Mover, graph: Graph) -> list[Fusion | RefusalRecord]:
    """Records about `mover`'s final state; names are those of `graph`, whose nodes are in the same
    order."""
    order = mover.flow.order()
    names = {number: node.name for number, node in zip(order, graph.nodes)}
    first = {m: n for n in reversed(order) for m in mover.members[n]}
    fusions = [_fusion(mover, n, names[n], first) for n in order if len(mover.members[n]) > 1]
    refusals = [
        _refusal(mover, producer, consumer, names) for producer, consumer in _edges(mover, order)
    ]
    return [*fusions, *sorted(refusals, key=lambda r: -r.bytes_at_stake)]


def _fusion(mover: Mover, number: NodeId, name: str, first: Mapping[str, NodeId]) -> Fusion:
    """What several kernels compute counts before for the `first` of them: sums over kernels are
    right."""
    node, members, prices = mover.flow.nodes[number], mover.members[number], mover.prices
    alone = [mover.alone[m] for m in members if first[m] == number]
    before_s = sum(prices.cost(n).seconds for n in alone)
    return Fusion(
        kernel=name,
        members=members,
        origins=node.origins,
        bytes_before=sum(node_bytes(n, prices.buffers, prices.hints) for n in alone),
        bytes_after=node_bytes(node, prices.buffers, prices.hints),
        launches_before=len(alone),
        launches_after=1,
        saved_us=(before_s - prices.cost(node).seconds) * 1e6,
    )


def _edges(mover: Mover, order: list[NodeId]) -> list[tuple[NodeId, NodeId]]:
    """(writer, reader) pairs of which at least one is a Comp."""
    flow, found = mover.flow, {}
    for number in order:
        for buffer in flow.nodes[number].reads:
            for writer in flow.writers[buffer]:
                pair = flow.nodes[writer], flow.nodes[number]
                if flow.comes_first(writer, number) and any(isinstance(n, Comp) for n in pair):
                    found[writer, number] = None
    return list(found)


def _refusal(mover: Mover, producer: NodeId, consumer: NodeId, names) -> RefusalRecord:
    nodes = mover.flow.nodes
    exchanged = set(nodes[producer].writes).intersection(nodes[consumer].reads)
    at_stake = sum(bytes_of(mover.prices.buffers[b], mover.prices.hints) for b in exchanged)
    why = _why(mover, producer, consumer)
    return RefusalRecord(names[producer], names[consumer], why.reason, why.evidence, at_stake)


def _why(mover: Mover, producer: NodeId, consumer: NodeId) -> Refusal:
    pair = (producer, mover.flow.nodes[producer]), (consumer, mover.flow.nodes[consumer])
    extern = next((node for _, node in pair if isinstance(node, Extern)), None)
    if extern is not None:
        return Refusal(Reason.EXTERN, extern.target)
    answer = mover.price(Move("fuse", producer, (consumer,)))
    if isinstance(answer, Refusal):
        return answer
    return Refusal(Reason.BETTER, f"fusing these two now would gain {answer.saved_s * 1e6:.1f} us")
