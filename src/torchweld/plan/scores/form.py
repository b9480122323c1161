"""Attention written by hand, as kernels that never hold its scores in memory.

    extern s = bmm(q, k);  comps p = softmax(mask(scale(s)));  extern o = bmm(p, v)
 -> comp o: a score nest, if a template of the target takes it and it is predicted to be faster

Before the search for other fusions, while each Comp is one operation. The nests of one graph are
taken together: the gradients of queries, keys and values share the scores, and none of these may be
needed elsewhere. A statistic that others need (for a backward) is stored by the nest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate, chain, count

from torchweld.core.options import Options
from torchweld.ir.nodes import Cast, Comp, Graph, Load, Node, Op, Reduce, Store, readers, views
from torchweld.plan.decisions import Fusion, Plan
from torchweld.plan.products.told import explained
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.scores.join import join_nests, with_joined
from torchweld.plan.scores.offer import FAMILY, Desk, Offer, with_stores
from torchweld.plan.scores.write import Sources, Written, may_end, with_reader, written
from torchweld.rewrite.dead import drop_dead_nodes
from torchweld.rewrite.flow import mutated_buffers
from torchweld.targets.target import Target
from torchweld.templates.template import Choose
from torchweld.templates.traffic import node_bytes

_MOST_CHANGES = 16  # stores and readers that nests of the same products take on


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
    before, plan = plan.graph, explained(plan, refused | more)
    graph, homes = _joined(graph, tuple(taken), desk)
    names = _names(homes, graph)
    inside: dict[str, list[Offer]] = {}
    for root, offer in taken.items():
        inside.setdefault(homes[root], []).append(offer)
    comps, place = {n.name: n for n in graph.nodes}, {n.name: k for k, n in enumerate(before.nodes)}
    told = tuple(
        _told(inside[home], replace(comps[home], name=name), desk, place)
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
    while pairs := join_nests(graph, set(homes.values()), desk, tried):
        tried.update(pairs)
        todo = [pairs]
        while todo:
            batch = todo.pop(0)
            merged = {other: comp for (_, other), comp in batch.items()}
            together = _ordered(with_joined(graph, batch), merged, ())
            if isinstance(together, Graph):
                graph, moved = together, dict(batch.keys())
                homes = {root: moved.get(home, home) for root, home in homes.items()}
            elif len(batch) > 1:  # some cannot be: one by one
                todo = [{pair: comp} for pair, comp in batch.items()]
    return graph, homes


def _names(homes: Mapping[str, str], graph: Graph) -> dict[str, str]:
    """Names for the nests, by those that they have: the products that they end in."""
    used = {n.name for n in graph.nodes}
    free = (n for n in chain(["attention"], (f"attention_{k}" for k in count())) if n not in used)
    return dict(zip(dict.fromkeys(homes.values()), free))


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
    made = _repeated(offers)
    while offers:
        made = made or _with(graph, offers, desk)
        if isinstance(made, Graph):
            return offers, made, refused
        for name, why in made.items():
            offer = offers.pop(name)
            refused |= {(m, name): why for m in _products(offer)}
        made = None
    return {}, graph, refused


def _products(offer: Offer) -> list[str]:
    return [m for m, member in offer.written.members.items() if member.is_product]


def _repeated(offers: Mapping[str, Offer]) -> dict[str, Refusal]:
    """The offers that would compute a product again for each of them, with nothing done to it: a
    projection that every step of a loop multiplies with. Nests of softmaxes share what they make
    (`_joined`)."""
    bare = {name: _products(o) for name, o in offers.items() if _is_bare(o.comp)}
    uses = Counter(m for inside in bare.values() for m in inside)
    return {
        name: Refusal(Reason.READERS, f"{uses[m]} products read it")
        for name, inside in bare.items()
        for m in inside
        if uses[m] > 1
    }


def _is_bare(comp: Comp) -> bool:
    """Whether it is nothing but products of products."""
    ops = (i for i in comp.body if not isinstance(i, (Load, Cast)))
    return all(isinstance(i, Reduce) or (isinstance(i, Op) and i.name == "mul") for i in ops)


def _with(graph: Graph, offers: Mapping[str, Offer], desk: Desk) -> Graph | dict[str, Refusal]:
    """`graph` with all `offers` taken; the offers that cannot be, and why."""
    nests, offers = {name: o.comp for name, o in offers.items()}, dict(offers)
    wanted: dict[str, list[Store]] = {}
    gone: set[str] = set()
    for _ in range(_MOST_CHANGES):
        nodes = tuple(nests.get(n.name, n) for n in graph.nodes if n.name not in gone)
        left = _Left(drop_dead_nodes(replace(graph, nodes=nodes)), Sources.of(graph), offers)
        again = left.computed_again()
        if not again:
            return _ordered(left.graph, nests, offers)
        changes = left.changes(again)
        if not changes:
            return {n: Refusal(Reason.READERS, ", ".join(sorted(c))) for n, c in again.items()}
        refused: dict[str, Refusal] = {}
        for name, (node, change) in changes.items():
            if isinstance(change, Written):
                offers[name] = replace(offers[name], written=change)
            else:
                wanted.setdefault(name, []).extend(change)
            offer = desk.offer(
                offers[name].root, with_stores(offers[name].written, wanted.get(name, ())))
            if isinstance(offer, Refusal):
                refused[name] = offer
            else:
                nests[name] = offer.comp
            gone.add(node)
        if refused:
            return refused
    return {n: Refusal(Reason.READERS, "too many of them") for n in again}


Change = tuple[str, "Written | list[Store]"]  # a node that goes, and what a nest does instead


class _Left:
    """A graph in which nests have taken the place of products, and what is still there although
    it is inside one. `before`: the graph without nests."""

    def __init__(self, graph: Graph, before: Sources, offers: Mapping[str, Offer]) -> None:
        self.graph, self._before, self._offers = graph, before, offers
        self._sources, self._readers = Sources.of(graph), readers(graph.nodes)
        self._here = {n.name: n for n in graph.nodes}
        self._place = {n.name: k for k, n in enumerate(graph.nodes)}
        self._kept = {v.buffer for v in views(graph.outputs)}

    def computed_again(self) -> dict[str, set[str]]:
        """By offer, the products inside that are still there for others."""
        inside = {
            name: {m for m, member in offer.written.members.items() if member.is_product}
            for name, offer in self._offers.items()
        }
        return {n: names & self._here.keys() for n, names in inside.items()
                if not names.isdisjoint(self._here)}  # fmt: skip

    def changes(self, again: Mapping[str, set[str]]) -> dict[str, Change]:
        """At most one for nests of the same products, since it may help them all: a statistic that
        the nest can store, or else a reader that it can take in."""
        found: dict[str, Change] = {}
        busy: set[str] = set()
        for look in (self._moved_store, self._joining_reader):
            for name, products in again.items():
                change = look(name, products) if products.isdisjoint(busy) else None
                if change is not None:
                    found[name] = change
                    busy |= products
        return found

    def _moved_store(self, name: str, products: set[str]) -> Change | None:
        """A statistic that others need, and the stores by which the nest makes it."""
        sources, here, members = self._sources, self._here, self._offers[name].written.members
        scores = max(sources.elements(here[p].writes[0]) for p in products)
        first = min(sources.place[p] for p in products)
        for member in (m for m in members if m in here and not members[m].is_product):
            made = here[member].writes[0]
            behind = sources.behind(made, 0, first)
            if sources.elements(made) >= scores or all(n.name not in products for n in behind):
                continue
            users = [n.name for b in here[member].writes for n in self._readers.get(b, ())]
            outside = any(n not in members or n in self._offers for n in users)
            stores = members[member].stores(self._offers[name].written.comp.extents)
            if (outside or self._kept & set(here[member].writes)) and stores:
                return member, stores
        return None

    def _joining_reader(self, name: str, products: set[str]) -> Change | None:
        """A reduction of the scores of a nest that is not behind its product, and the nest with
        it."""
        offer = self._offers[name]
        members = offer.written.members
        inside = {b for m in members if m in self._here for b in self._here[m].writes} - self._kept
        users = {n.name: n for b in inside for n in self._readers.get(b, ())}
        for node in sorted(users.values(), key=lambda n: self._place[n.name]):
            if not isinstance(node, Comp) or node.name in self._offers or node.name in members:
                continue
            if any(isinstance(i, Reduce) for i in node.body):
                found = with_reader(offer.root, offer.written, node, self._before)
                if isinstance(found, Written) and len(found.comp.stores) == 2:
                    return node.name, found
        return None


def _ordered(left: Graph, nests: Mapping[str, Comp], offers) -> Graph | dict[str, Refusal]:
    """`left` with each node behind those whose results it reads."""
    made = {b for n in left.nodes for b in n.writes} - {n for n in left.inputs if n}
    waits = [made.intersection(n.reads) for n in left.nodes]
    waiting: dict[str, list[int]] = {}
    for k, missing in enumerate(waits):
        for name in missing:
            waiting.setdefault(name, []).append(k)
    ready = [k for k, missing in enumerate(waits) if not missing]  # in order, so a heap
    done: list[int] = []
    while ready:
        done.append(heappop(ready))
        for name in left.nodes[done[-1]].writes:
            for k in waiting.pop(name, ()):
                waits[k].discard(name)
                if not waits[k]:
                    heappush(ready, k)
    if len(done) < len(left.nodes):
        return {n: Refusal(Reason.REENTRY, n) for n in offers}
    passed = (k for k, last in zip(done, accumulate(done, max)) if k < last)  # moved back
    moved = (*nests.values(), *(left.nodes[k] for k in passed))
    touched = {b for n in moved for b in (*n.reads, *n.writes)}
    changed = touched & mutated_buffers(left)
    if changed:
        return {n: Refusal(Reason.MUTATION, min(changed)) for n in offers}
    return replace(left, nodes=tuple(left.nodes[k] for k in done))


def _told(offers: Sequence[Offer], comp: Comp, desk: Desk, place: Mapping[str, int]) -> Fusion:
    """`comp`: the nest that took the `offers`. `place`: of each node of the graph before."""
    inside = {m for o in offers for m in (o.root.name, *o.written.members)}
    nodes = [desk.nodes[m] for m in sorted(inside, key=place.__getitem__)]
    before_s, after_s = (sum(getattr(o, k) for o in offers) for k in ("before_s", "after_s"))
    buffers, hints = desk.graph.buffers, desk.graph.hints
    return Fusion(
        kernel=comp.name,
        members=tuple(n.name for n in nodes),
        origins=comp.origins,
        bytes_before=sum(node_bytes(n, buffers, hints) for n in nodes),
        bytes_after=node_bytes(comp, buffers, hints),
        launches_before=len(nodes),
        launches_after=1,
        saved_us=(before_s - after_s) * 1e6,
        separate_us=before_s * 1e6,
        fused_us=after_s * 1e6,
    )
