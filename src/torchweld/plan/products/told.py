"""What was decided about products, as records in the place of those that no longer hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from torchweld.ir.nodes import Comp, Graph, Node
from torchweld.plan.decisions import Cut, Decision, Fusion, Plan, RefusalRecord
from torchweld.plan.refusals import Refusal
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
    told = [_record(pair, why, prices.graph) for pair, why in refused.items()]
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


def _record(pair: Pair, why: Refusal, graph: Graph) -> RefusalRecord:
    one, other = (next(n for n in graph.nodes if n.name == name) for name in pair)
    exchanged = set(one.writes).intersection(other.reads)
    at_stake = sum(bytes_of(graph.buffers[b], graph.hints) for b in exchanged)
    return RefusalRecord(*pair, why.reason, why.evidence, at_stake)


def _renamed(decision: Decision, names: Mapping[str, str]) -> Decision:
    if not isinstance(decision, RefusalRecord):
        return decision
    producer, consumer = (names.get(n, n) for n in (decision.producer, decision.consumer))
    return replace(decision, producer=producer, consumer=consumer)
