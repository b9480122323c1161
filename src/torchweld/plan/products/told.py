"""What was decided about products, as records in the place of those that no longer hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from torchweld.ir.nodes import Comp, Graph, Node
from torchweld.plan.decisions import Cut, Decision, Fusion, Plan, RefusalRecord
from torchweld.plan.refusals import Reason, Refusal
from torchweld.templates.gemm.price import Prices
from torchweld.templates.pointwise_reduce.price import bytes_of

Pair = tuple[str, str]  # names of a call and of its reader


@dataclass(frozen=True, slots=True)
class Taken:
    """`parts`, nodes of the graph before, that became the kernel or library call `comp` and, where
    the last of them was cut, `rest`."""

    comp: Node
    rest: Comp | None
    parts: tuple[str, ...]
    before_s: float
    after_s: float


def decisions(
    plan: Plan, taken: Iterable[Taken], refused: Mapping[Pair, Refusal], prices: Prices
) -> tuple[Decision, ...]:
    """The plan's decisions brought up to date; the names of `taken` are those of the new graph."""
    made, names, joined = [], {}, set(refused)
    nodes = {n.name: n for n in prices.graph.nodes}
    fusions = {f.kernel: f for f in reversed(plan.fusions)}
    for one in taken:
        made += _told(one, [fusions.get(p) or _alone(nodes[p], prices) for p in one.parts], prices)
        names |= dict.fromkeys(one.parts, one.comp.name)
        joined.update(permutations(one.parts, 2))
    gone = {d.kernel for d in made if isinstance(d, Fusion)} | set(names)
    kept = [d for d in plan.decisions if not (isinstance(d, Fusion) and d.kernel in gone)]
    kept = [d for d in kept if not _is_outdated(d, joined)]
    told = records(refused, prices.graph)
    return (*made, *(_renamed(d, names) for d in (*kept, *told)))


def _told(one: Taken, before: list[Fusion], prices: Prices) -> list[Decision]:
    """`before`: what its parts were."""
    gain_us = (one.before_s - one.after_s) * 1e6
    kernels = [one.comp, *([one.rest] if one.rest else [])]
    fusion = Fusion(
        kernel=one.comp.name,
        members=tuple(dict.fromkeys(m for f in before for m in f.members)),
        origins=one.comp.origins,
        bytes_before=sum(f.bytes_before for f in before),
        bytes_after=sum(prices.moved(k) for k in kernels),
        launches_before=sum(f.launches_before for f in before),
        launches_after=len(kernels),
        saved_us=gain_us + sum(f.saved_us for f in before),
        separate_us=one.before_s * 1e6,
        fused_us=one.after_s * 1e6,
    )
    cut = Cut(one.parts[-1], tuple(k.name for k in kernels), gain_us)
    return [fusion, cut] if one.rest else [fusion]


def _alone(node: Node, prices: Prices) -> Fusion:
    """A node as the fusion of itself alone."""
    moved = prices.moved(node)
    return Fusion(node.name, (node.name,), node.origins, moved, moved, 1, 1, 0.0)


def _is_outdated(decision: Decision, joined: set[Pair]) -> bool:
    """A refusal between what is one kernel now, or for which there is a better reason."""
    refusal = isinstance(decision, RefusalRecord)
    return refusal and (decision.producer, decision.consumer) in joined


def records(refused: Mapping[Pair, Refusal], graph: Graph) -> list[RefusalRecord]:
    """Of nodes of `graph`; what was made of them meanwhile has another name, and is told then."""
    nodes = {n.name: n for n in graph.nodes}
    known = {pair: why for pair, why in refused.items() if nodes.keys() >= set(pair)}
    return [_record(*(nodes[name] for name in pair), why, graph) for pair, why in known.items()]


def _record(one: Node, other: Node, why: Refusal, graph: Graph) -> RefusalRecord:
    exchanged = set(one.writes).intersection(other.reads)
    at_stake = sum(bytes_of(graph.buffers[b], graph.hints) for b in exchanged)
    return RefusalRecord(one.name, other.name, why.reason, why.evidence, at_stake)


def explained(plan: Plan, refused: Mapping[Pair, Refusal]) -> Plan:
    """`plan` with `refused` on record, in the place of "one side is a library call"; what is known
    of a pair beyond that stays."""
    known = {(d.producer, d.consumer): d for d in plan.refusals if d.reason is not Reason.EXTERN}
    new = {pair: why for pair, why in refused.items() if pair not in known}
    joined = set(new)
    kept = [d for d in plan.decisions if not _is_outdated(d, joined)]
    return replace(plan, decisions=(*kept, *records(new, plan.graph)))


def of_call(call: Node, readers: Mapping[str, list[Node]], why: Refusal) -> dict[Pair, Refusal]:
    """Why `call` stays the library's, by its name and those of its readers; where it has none, by
    its own. `readers`: of each buffer (`ir.nodes.readers`)."""
    found = [n.name for made in call.writes for n in readers.get(made, ())]
    return {(call.name, reader): why for reader in found or [call.name]}


def _renamed(decision: Decision, names: Mapping[str, str]) -> Decision:
    if not isinstance(decision, RefusalRecord):
        return decision
    producer, consumer = (names.get(n, n) for n in (decision.producer, decision.consumer))
    return replace(decision, producer=producer, consumer=consumer)
