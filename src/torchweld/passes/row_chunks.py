"""Logits and what a loss makes of them, a few rows at a time: never whole in memory.

`ir/row_region.py` finds the nodes, `ir/row_price.py` says whether chunks pay, and of how many rows,
`row_nodes.py` writes them. What is refused is on record with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchweld.core.units import bytes_text
from torchweld.ir.nodes import Comp, Graph
from torchweld.ir.row_map import NotByRows, chunk_name
from torchweld.ir.row_price import Chunks, best_chunks, region_s, wide_bytes
from torchweld.ir.row_region import Region, find_region
from torchweld.ir.row_seeds import next_seeds
from torchweld.passes.row_nodes import Chunked
from torchweld.plan.decisions import Choice, Decision, Fusion, Plan, RefusalRecord
from torchweld.plan.products.told import explained, of_call
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target

_MOST_REGIONS = 8


def row_chunks(plan: Plan, target: Target) -> Plan:
    """`plan` with each region of large rows in chunks."""
    tried: set[str] = set()
    for _ in range(_MOST_REGIONS):
        seeds = next_seeds(plan.graph, tried)
        if not seeds:
            return plan
        known = plan.graph.buffers.keys()
        plan = _in_chunks(plan, seeds, target)
        tried.update(seeds, plan.graph.buffers.keys() - known)
    return plan


def _in_chunks(plan: Plan, seeds: tuple[str, ...], target: Target) -> Plan:
    graph = plan.graph
    if graph.symbols:
        return _refused(plan, seeds, Refusal(Reason.ALL_ROWS, "a size is known only at the call"))
    try:
        region = find_region(graph, seeds)
        ways = best_chunks(region, graph, target)
        if not ways:
            return _refused(plan, seeds, _small(region, graph, target))
        chunks, made = _first_that_fits(graph, region, seeds, ways)
    except NotByRows as why:
        return _refused(plan, seeds, Refusal(Reason.ALL_ROWS, str(why)))
    return Plan(made, _told(plan, region, chunks))


def _first_that_fits(
    graph: Graph, region: Region, seeds: tuple[str, ...], ways: Iterable[Chunks]
) -> tuple[Chunks, Graph]:
    why = NotByRows("no number of rows")
    for chunks in ways:
        bounds = chunks.bounds(region.rows)
        try:
            return chunks, Chunked(graph, find_region(graph, seeds, len(bounds)), bounds).run()
        except NotByRows as error:
            why = error
    raise why


# -- what is told --


def _refused(plan: Plan, seeds: Iterable[str], why: Refusal) -> Plan:
    made = [n for n in plan.graph.nodes if set(seeds).intersection(n.writes)]
    refused = {}
    for node in made:
        refused |= of_call(node, plan.graph, why)
    return explained(plan, refused)


def _small(region: Region, graph: Graph, target: Target) -> Refusal:
    large, seconds = wide_bytes(region, graph), region_s(region, graph, target)
    evidence = f"{bytes_text(large)} at once, {seconds * 1e6:.0f} us"
    return Refusal(Reason.SMALL_ROWS, evidence)


def _told(plan: Plan, region: Region, chunks: Chunks) -> tuple[Decision, ...]:
    """The plan's decisions with the names of first chunks, and the region's own."""
    names = {m.node.name: chunk_name(m.node.name, 0) for m in region.members}
    return (*(_renamed(d, names) for d in plan.decisions), _choice(region, chunks))


def _choice(region: Region, chunks: Chunks) -> Choice:
    comps = [m.node for m in region.members if isinstance(m.node, Comp)]
    calls = len(region.members) - len(comps)
    schedule = f"{calls} products and {len(comps)} kernels, {chunks.rows} of {region.rows} rows"
    before, after = bytes_text(chunks.bytes_before), bytes_text(chunks.bytes_after)
    reason = f"{before} -> {after} of large results in memory at once"
    seconds = chunks.seconds + chunks.extra_s
    return Choice(region.members[0].node.name, "row chunks", schedule, seconds * 1e6, reason)


def _renamed(decision: Decision, names) -> Decision:
    if isinstance(decision, Fusion):
        return replace(decision, kernel=names.get(decision.kernel, decision.kernel))
    if isinstance(decision, RefusalRecord):
        pair = (names.get(n, n) for n in (decision.producer, decision.consumer))
        return replace(decision, **dict(zip(("producer", "consumer"), pair)))
    return decision
