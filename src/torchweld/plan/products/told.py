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
    for one in taken:
        made += _told(one, plan, prices)
        names |= dict.fromkeys(one.parts, one.comp.name)
        joined.update(permutations(one.parts, 2))
    gone = {d.kernel for d in made if isinstance(d, Fusion)} | set(names)
    kept = [d for d in plan.decisions if not (isinstance(d, Fusion) and d.kernel in gone)]
    kept = [d for d in kept if not _is_outdated(d, joined)]
    told = records(refused, prices.graph)
    return (*made, *(_renamed(d, names) for d in (*kept, *told)))


def _told(one: Taken, plan: Plan, prices: Prices) -> list[Decision]:
    gain_us = (one.before_s - one.after_s) * 1e6
    kernels = [one.comp, *([one.rest] if one.rest else [])]
    before = [_alone(name, plan, prices) for name in one.parts]
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


def _alone(name: str, plan: Plan, prices: Prices) -> Fusion:
    """The fusion that a node was before, of itself alone if it was none."""
    known = next((f for f in plan.fusions if f.kernel == name), None)
    node = next(n for n in prices.graph.nodes if n.name == name)
    moved = prices.moved(node)
    return known or Fusion(name, (name,), node.origins, moved, moved, 1, 1, 0.0)


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
    kept = [d for d in plan.decisions if not _is_outdated(d, set(new))]
    return replace(plan, decisions=(*kept, *records(new, plan.graph)))


def of_call(call: Node, graph: Graph, why: Refusal) -> dict[Pair, Refusal]:
    """Why `call` stays the library's, by its name and those of its readers; where it has none, by
    its own."""
    made = set(call.writes)
    readers = [n.name for n in graph.nodes if made.intersection(n.reads)]
    return {(call.name, reader): why for reader in readers or [call.name]}


def _renamed(decision: Decision, names: Mapping[str, str]) -> Decision:
    if not isinstance(decision, RefusalRecord):
        return decision
    producer, consumer = (names.get(n, n) for n in (decision.producer, decision.consumer))
    return replace(decision, producer=producer, consumer=consumer)
