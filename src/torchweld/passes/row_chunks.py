"""Logits and what a loss makes of them, a few rows at a time: never whole in memory.

`ir/row_region.py` finds the nodes, `row_price.py` says whether chunks pay, and of how many rows,
`row_nodes.py` writes them. What is refused is on record with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchweld.core.units import bytes_text
from torchweld.ir.nodes import Comp, Extern, Graph, views
from torchweld.ir.row_map import NotByRows
from torchweld.ir.row_region import Region, find_region, product_operands
from torchweld.passes.row_nodes import Chunked, chunk_name
from torchweld.passes.row_price import Chunks, best_chunks
from torchweld.plan.decisions import Choice, Decision, Fusion, Plan, RefusalRecord
from torchweld.plan.products.told import explained, of_call
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target

_MOST_REGIONS = 8
LARGE = 8  # times as many columns as depth: no hidden layer is so wide, vocabularies are


def row_chunks(plan: Plan, target: Target) -> Plan:
    """`plan` with each region of large rows in chunks."""
    tried: set[str] = set()
    for _ in range(_MOST_REGIONS):
        seeds = _next_seeds(plan.graph, tried)
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
        if isinstance(ways, Refusal):
            return _refused(plan, seeds, ways)
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


def _next_seeds(graph: Graph, tried: set[str]) -> tuple[str, ...]:
    """Large temporaries of one number of rows: results of products if there are any."""
    for found in (large_results(graph), _large_operands(graph)):
        names = [n for n in dict.fromkeys(found) if n not in tried]
        if names:
            rows = _rows(graph, names[0])
            return tuple(n for n in names if _rows(graph, n) == rows)
    return ()


def large_results(graph: Graph) -> list[str]:
    """Temporaries that products with a small depth make."""
    held = _held(graph)
    found = []
    for node in graph.nodes:
        operands = product_operands(node)
        if operands and node.outputs[0] not in held:
            _, left, right = operands
            found += [node.outputs[0]] if right.shape[1] >= LARGE * right.shape[0] else []
    return [n for n in found if 0 not in graph.buffers[n].shape]


def _large_operands(graph: Graph) -> list[str]:
    """Temporaries of kernels that products with a small result read."""
    held = _held(graph) | {b for n in graph.nodes if isinstance(n, Extern) for b in n.writes}
    found = []
    for node in graph.nodes:
        operands = product_operands(node)
        if operands and operands[1].buffer not in held:
            _, left, right = operands
            found += [left.buffer] if max(left.shape) >= LARGE * right.shape[1] else []
    return [n for n in found if len(graph.buffers[n].shape) > 1 and 0 not in graph.buffers[n].shape]


def _held(graph: Graph) -> set[str]:
    return {v.buffer for v in views(graph.outputs)} | {n for n in graph.inputs if n}


def _rows(graph: Graph, name: str) -> object:
    rows = 1
    for extent in graph.buffers[name].shape[:-1]:
        rows *= extent
    return rows


# -- what is told --


def _refused(plan: Plan, seeds: Iterable[str], why: Refusal) -> Plan:
    made = [n for n in plan.graph.nodes if set(seeds).intersection(n.writes)]
    refused = {}
    for node in made:
        refused |= of_call(node, plan.graph, why)
    return explained(plan, refused)


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
