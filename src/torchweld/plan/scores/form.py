"""Attention written by hand, as kernels that never hold its scores in memory.

    extern s = bmm(q, k);  comps p = softmax(mask(scale(s)));  extern o = bmm(p, v)
 -> comp o: a score nest, if a template of the target takes it and it is predicted to be faster

Before the search for other fusions, while each Comp is one operation. The nests of one graph are
taken together: the gradients of queries, keys and values share the scores, and none of these may be
needed elsewhere. A statistic that others need (for a backward) is stored by the nest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchweld.core.options import Options
from torchweld.ir.nodes import Comp, Graph, Node, Reduce, Store, views
from torchweld.plan.decisions import Fusion, Plan
from torchweld.plan.inline import fresh
from torchweld.plan.products.told import explained
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.scores.join import join_nests, without
from torchweld.plan.scores.offer import FAMILY, Desk, Offer, with_stores
from torchweld.plan.scores.write import Sources, Written, may_end, with_reader, written
from torchweld.rewrite.dead import drop_dead_nodes
from torchweld.rewrite.flow import mutated_buffers
from torchweld.targets.target import Target
from torchweld.templates.template import Choose
from torchweld.templates.traffic import node_bytes

_MOST_CHANGES = 16  # stores and readers that a graph's nests take on


def score_nests(plan: Plan, target: Target, options: Options, choose: Choose) -> Plan:
    """`plan` with products whose factor is made of other products as kernels of templates for
    attention, where those take them."""
    if not options.fuse or not any(t.startswith(FAMILY) for t in target.templates):
        return plan
    desk, sources = Desk(plan.graph, target, options, choose), Sources.of(plan.graph)
    found: dict[str, Offer] = {}
    refused: dict[tuple[str, str], Refusal] = {}
    for node in filter(may_end, plan.graph.nodes):
        best = _best(node, sources, desk)
        if isinstance(best, Offer):
            found[node.name] = best
        elif best is not None:
            refused |= _pairs(node, best, sources)
    taken, graph, more = _taken(plan.graph, found, desk)
    plan = explained(plan, refused | more)
    graph, homes = _joined(graph, tuple(taken), desk)
    names = _names(homes, graph)
    told = tuple(
        _told([taken[r] for r in taken if homes[r] == home], name, plan.graph, graph)
        for home, name in names.items()
    )
    nodes = tuple(replace(n, name=names.get(n.name, n.name)) for n in graph.nodes)
    graph = replace(graph, nodes=nodes)
    return replace(plan, graph=graph, decisions=(*plan.decisions, *told))


def _joined(
    graph: Graph, roots: tuple[str, ...], desk: Desk
) -> tuple[Graph, dict[str, str]]:
    """`graph` with nests over the same scores in one, and for each root the name of the Comp that
    it is in now."""
    homes = {root: root for root in roots}
    tried: set[tuple[str, str]] = set()
    while True:
        pairs = join_nests(graph, tuple(dict.fromkeys(homes.values())), desk)
        found = next((p for p in pairs if p[:2] not in tried), None)
        if found is None:
            return graph, homes
        one, other, merged = found
        tried.add((one, other))
        merged = replace(merged, name=other)
        together = _ordered(without(graph, one, other, merged), {other: merged}, ())
        if isinstance(together, Graph):
            graph = together
            homes = {root: other if home == one else home for root, home in homes.items()}


def _names(homes: Mapping[str, str], graph: Graph) -> dict[str, str]:
    """Names for the nests, by those that they have: the products that they end in."""
    used = {n.name for n in graph.nodes}
    return {home: fresh("attention", used) for home in dict.fromkeys(homes.values())}


def _pairs(root: Node, why: Refusal, sources: Sources) -> dict[tuple[str, str], Refusal]:
    """Why a product and those behind it stay apart, by their names."""
    behind = frozenset().union(*(sources.products(name, 1) for name in root.reads))
    return {(name, root.name): why for name in sorted(behind)}


def _best(node: Node, sources: Sources, desk: Desk) -> Offer | Refusal | None:
    """The best nest that ends in `node`; None where no product is behind it."""
    found = [
        desk.offer(node, w) if isinstance(w, Written) else w for w in written(node, sources)
    ]
    offers = [f for f in found if isinstance(f, Offer)]
    return min(offers, key=lambda o: o.after_s, default=found[0] if found else None)


def _taken(
    graph: Graph, offers: Mapping[str, Offer], desk: Desk
) -> tuple[dict[str, Offer], Graph, dict[tuple[str, str], Refusal]]:
    """The offers that can be taken together, the graph with them, and why others cannot."""
    offers, refused = dict(offers), {}
    while offers:
        made = _with(graph, offers, desk)
        if isinstance(made, Graph):
            return offers, made, refused
        for name, why in made.items():
            offer = offers.pop(name)
            inside = (m for m, member in offer.written.members.items() if member.is_product)
            refused |= {(m, name): why for m in inside}
    return {}, graph, refused


def _with(graph: Graph, offers: Mapping[str, Offer], desk: Desk) -> Graph | dict[str, Refusal]:
    """`graph` with all `offers` taken; the offers that cannot be, and why."""
    nests, offers = {name: o.comp for name, o in offers.items()}, dict(offers)
    wanted: dict[str, list[Store]] = {}
    gone: set[str] = set()
    for _ in range(_MOST_CHANGES):
        nodes = tuple(nests.get(n.name, n) for n in graph.nodes if n.name not in gone)
        left = drop_dead_nodes(replace(graph, nodes=nodes))
        again = _computed_again(left, offers)
        if not again:
            return _ordered(left, nests, offers)
        moved = _moved_store(again, offers, left) or _joining_reader(again, offers, left, graph)
        if moved is None:
            return {n: Refusal(Reason.READERS, ", ".join(sorted(c))) for n, c in again.items()}
        name, node, change = moved
        if isinstance(change, Written):
            offers[name] = replace(offers[name], written=change)
        else:
            wanted.setdefault(name, []).extend(change)
        offer = desk.offer(
            offers[name].root, with_stores(offers[name].written, wanted.get(name, ())))
        if isinstance(offer, Refusal):
            return {name: offer}
        nests[name] = offer.comp
        gone.add(node)
    return {n: Refusal(Reason.READERS, "too many of them") for n in offers}


def _joining_reader(
    again: Mapping[str, set[str]], offers: Mapping[str, Offer], left: Graph, graph: Graph
) -> tuple[str, str, Written] | None:
    """A reduction of the scores of a nest that is not behind its product, and the nest with it."""
    kept, sources = {v.buffer for v in views(left.outputs)}, Sources.of(graph)
    for name in again:
        members = offers[name].written.members
        inside = {b for n in left.nodes if n.name in members for b in n.writes} - kept
        for node in (n for n in left.nodes if isinstance(n, Comp) and n.name not in offers):
            reduces = any(isinstance(i, Reduce) for i in node.body)
            if node.name in members or not reduces or not inside.intersection(node.reads):
                continue
            found = with_reader(offers[name].root, offers[name].written, node, sources)
            if isinstance(found, Written) and len(found.comp.stores) == 2:
                return name, node.name, found
    return None


def _computed_again(left: Graph, offers: Mapping[str, Offer]) -> dict[str, set[str]]:
    """By offer, the products inside that are still there for others."""
    names = {n.name for n in left.nodes}
    found = {}
    for name, offer in offers.items():
        inside = {m for m, member in offer.written.members.items() if member.is_product}
        if inside & names:
            found[name] = inside & names
    return found


def _moved_store(
    again: Mapping[str, set[str]], offers: Mapping[str, Offer], left: Graph
) -> tuple[str, str, list[Store]] | None:
    """A statistic that others need, and the nest that can store it: the nest's name, the node that
    goes, and the stores."""
    here = {n.name: n for n in left.nodes}
    kept, sources = {v.buffer for v in views(left.outputs)}, Sources.of(left)
    for name, products in again.items():
        members = offers[name].written.members
        scores = max(sources.elements(here[p].writes[0]) for p in products)
        for member in (m for m in members if m in here and not members[m].is_product):
            made = here[member].writes[0]
            if sources.elements(made) >= scores or not sources.products(made, 0) & products:
                continue
            readers = [n for n in left.nodes if set(here[member].writes) & set(n.reads)]
            outside = any(n.name not in members or n.name in offers for n in readers)
            stores = members[member].stores(offers[name].written.comp.extents)
            if (outside or kept & set(here[member].writes)) and stores:
                return name, member, stores
    return None


def _ordered(left: Graph, nests: Mapping[str, Comp], offers) -> Graph | dict[str, Refusal]:
    """`left` with each node behind those whose results it reads."""
    waiting = {b for n in left.nodes for b in n.writes} - {n for n in left.inputs if n}
    todo, done = list(left.nodes), []
    touched = {b for c in nests.values() for b in (*c.reads, *c.writes)}
    while todo:
        ready = next((k for k, n in enumerate(todo) if not waiting.intersection(n.reads)), None)
        if ready is None:
            return {n: Refusal(Reason.REENTRY, n) for n in offers}
        touched |= {b for n in todo[:ready] for b in (*n.reads, *n.writes)}
        done.append(todo.pop(ready))
        waiting -= set(done[-1].writes)
    changed = touched & mutated_buffers(left)
    if changed:
        return {n: Refusal(Reason.MUTATION, min(changed)) for n in offers}
    return replace(left, nodes=tuple(done))


def _told(offers: Sequence[Offer], name: str, before: Graph, after: Graph) -> Fusion:
    inside = {m for o in offers for m in (o.root.name, *o.written.members)}
    nodes = [n for n in before.nodes if n.name in inside]
    (comp,) = (n for n in after.nodes if n.name == name or n.name in {o.root.name for o in offers})
    before_s, after_s = (sum(getattr(o, k) for o in offers) for k in ("before_s", "after_s"))
    return Fusion(
        kernel=name,
        members=tuple(n.name for n in nodes),
        origins=comp.origins,
        bytes_before=sum(node_bytes(n, before.buffers, before.hints) for n in nodes),
        bytes_after=node_bytes(comp, after.buffers, after.hints),
        launches_before=len(nodes),
        launches_after=1,
        saved_us=(before_s - after_s) * 1e6,
        separate_us=before_s * 1e6,
        fused_us=after_s * 1e6,
    )
