"""Attention written by hand, as kernels that never hold its scores in memory.

    extern s = bmm(q, k);  comps p = softmax(mask(scale(s)));  extern o = bmm(p, v)
 -> comp o: a score nest, if a template of the target takes it and it is predicted to be faster

Before the search for other fusions, while each Comp is one operation. The nests of one graph are
taken together: the gradients of queries, keys and values share the scores, and none of these may be
needed elsewhere. A statistic that others need (for a backward) is stored by the nest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.core.options import Options
from torchweld.ir.nodes import Comp, Graph, Node, Store, views
from torchweld.plan.decisions import Fusion, Plan
from torchweld.plan.inline import fresh
from torchweld.plan.products.told import explained, of_call
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.scores.offer import FAMILY, Desk, Offer, with_stores
from torchweld.plan.scores.write import Sources, Written, written
from torchweld.rewrite.dead import drop_dead_nodes
from torchweld.rewrite.flow import mutated_buffers
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import is_product
from torchweld.templates.template import Choose
from torchweld.templates.traffic import node_bytes


def score_nests(plan: Plan, target: Target, options: Options, choose: Choose) -> Plan:
    """`plan` with products whose factor is made of other products as kernels of templates for
    attention, where those take them."""
    if not options.fuse or not any(t.startswith(FAMILY) for t in target.templates):
        return plan
    desk, sources = Desk(plan.graph, target, options, choose), Sources.of(plan.graph)
    found: dict[str, Offer] = {}
    refused: dict[tuple[str, str], Refusal] = {}
    for node in (n for n in plan.graph.nodes if is_product(n)):
        best = _best(node, sources, desk)
        if isinstance(best, Offer):
            found[node.name] = best
        elif best is not None:
            refused |= of_call(node, plan.graph, best)
    taken, graph, more = _taken(plan.graph, found, desk)
    plan = explained(plan, refused | more)
    names = _names(taken, graph)
    told = tuple(_told(offer, names[key], plan.graph, graph) for key, offer in taken.items())
    nodes = tuple(replace(n, name=names.get(n.name, n.name)) for n in graph.nodes)
    return replace(
        plan, graph=replace(graph, nodes=nodes), decisions=(*plan.decisions, *told))


def _names(taken: Mapping[str, Offer], graph: Graph) -> dict[str, str]:
    """Names for the nests, by the products that they end in."""
    used, names = {n.name for n in graph.nodes}, {}
    for name in taken:
        names[name] = fresh("attention", used)
    return names


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
            refused |= of_call(offers.pop(name).root, graph, why)
    return {}, graph, refused


def _with(graph: Graph, offers: Mapping[str, Offer], desk: Desk) -> Graph | dict[str, Refusal]:
    """`graph` with all `offers` taken; the offers that cannot be, and why."""
    nests = {name: o.comp for name, o in offers.items()}
    wanted: dict[str, list[Store]] = {}
    gone: set[str] = set()
    for _ in range(len(graph.nodes)):
        nodes = tuple(nests.get(n.name, n) for n in graph.nodes if n.name not in gone)
        left = drop_dead_nodes(replace(graph, nodes=nodes))
        again = _computed_again(left, offers)
        if not again:
            return _ordered(left, nests, offers)
        moved = _moved_store(again, offers, left)
        if moved is None:
            return {n: Refusal(Reason.READERS, ", ".join(sorted(c))) for n, c in again.items()}
        name, node, stores = moved
        wanted.setdefault(name, []).extend(stores)
        offer = desk.offer(offers[name].root, with_stores(offers[name].written, wanted[name]))
        if isinstance(offer, Refusal):
            return {name: offer}
        nests[name] = offer.comp
        gone.add(node)
    return graph


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
    kept = {v.buffer for v in views(left.outputs)}
    for name in again:
        members = offers[name].written.members
        for member in (m for m in members if m in here and not members[m].is_product):
            readers = [n for n in left.nodes if set(here[member].writes) & set(n.reads)]
            outside = any(n.name not in members or n.name in offers for n in readers)
            stores = members[member].stores()
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


def _told(offer: Offer, name: str, before: Graph, after: Graph) -> Fusion:
    nodes = [n for n in before.nodes if n.name in offer.written.members or n is offer.root]
    return Fusion(
        kernel=name,
        members=tuple(n.name for n in nodes),
        origins=offer.comp.origins,
        bytes_before=sum(node_bytes(n, before.buffers, before.hints) for n in nodes),
        bytes_after=node_bytes(offer.comp, after.buffers, after.hints),
        launches_before=len(nodes),
        launches_after=1,
        saved_us=(offer.before_s - offer.after_s) * 1e6,
        separate_us=offer.before_s * 1e6,
        fused_us=offer.after_s * 1e6,
    )
