"""Products of matrices joined with what is done to their results.

    extern t = mm(x, w);  comp y = gelu(t)          ->  comp y [m, n, k] { sum over k; gelu; store }
    extern g = mm(x, a);  extern u = mm(x, b);
    comp y = gelu(g) * u                            ->  one comp with two products

After planning, each pointwise Comp that reads results of products is offered every set of them that
might share its kernel. A set is taken if a template generates the kernel, and if it is predicted to
be faster than the library's calls and the Comp by a margin; the best set wins. Everything else
stays a library call, with the reason on record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Union

from torchweld.core.device import DeviceTable
from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Load, Node
from torchweld.ir.size import hint, product
from torchweld.kernels.products_comp import is_product, product_comp
from torchweld.kernels.products_cost import Work, seconds
from torchweld.plan.cost import Cost, bytes_of, cost
from torchweld.plan.decisions import Decision, Fusion, Plan, RefusalRecord
from torchweld.plan.flow import Flow, NodeId
from torchweld.plan.legality import kernel_refusal
from torchweld.plan.merge import Rules, merge
from torchweld.plan.moves import is_pointwise
from torchweld.plan.names import kernel_names
from torchweld.plan.refusals import Reason, Refusal
from torchweld.schedule.access import Accesses, addressed
from torchweld.schedule.contraction import Contraction, contraction_of
from torchweld.schedule.product import ProductSchedule

MARGIN = 0.02  # of the time before, that a fusion must be predicted to save

# (accesses, contraction, buffers, device, hints) -> how a template tiles it, or why none does
Choose = Callable[
    [Accesses, Contraction, Mapping[str, Buffer], DeviceTable, Mapping[str, int]],
    Union[ProductSchedule, str],
]


@dataclass(frozen=True, slots=True)
class _Offer:
    """`comp` in the place of `calls` and their consumer."""

    calls: tuple[NodeId, ...]
    comp: Comp
    before_s: float
    after_s: float

    @property
    def gain_s(self) -> float:
        return self.before_s - self.after_s


def form_products(plan: Plan, table: DeviceTable, options: Options, choose: Choose) -> Plan:
    """`plan` with products moved into the kernels that read their results, where that is predicted
    to be faster, and the decisions about each."""
    if table.kind != "cuda" or options.numerics != "contract" or not options.fuse:
        return plan
    former = _Former(plan.graph, table, choose)
    for number in former.flow.order():
        former.visit(number)
    return former.finished(plan)


class _Former:
    """Visits the Comps of one graph in order."""

    def __init__(self, graph: Graph, table: DeviceTable, choose: Choose) -> None:
        self.graph, self.table, self.choose = graph, table, choose
        self.flow = Flow(graph)
        self.shapes = {name: b.shape for name, b in graph.buffers.items()}
        self.fused: list[tuple[NodeId, tuple[str, ...], _Offer]] = []
        self.refused: dict[tuple[str, str], RefusalRecord] = {}

    def visit(self, number: NodeId) -> None:
        """Fuses the Comp `number` with products that it reads, if any set of them gains."""
        calls = self._calls(number)
        if not calls:
            return
        results = {group: self._offer(group, number) for group in _sets(calls, self.flow)}
        offers = [o for o in results.values() if isinstance(o, _Offer)]
        best = max(offers, key=lambda o: o.gain_s, default=None)
        if best is not None and best.gain_s <= MARGIN * best.before_s:
            best = None
        for call in calls:
            if best is None or call not in best.calls:
                self._refuse(call, number, results)
        if best is not None:
            self._take(best, number)

    def finished(self, plan: Plan) -> Plan:
        """The new graph, and decisions in the place of those that no longer hold."""
        order = self.flow.order()
        new = {number for number, _, _ in self.fused}
        kept = [self.flow.nodes[n].name for n in order if n not in new]
        names = iter(kernel_names([self.flow.nodes[n] for n in order if n in new], kept))
        renamed = {n: next(names) for n in order if n in new}
        nodes = tuple(
            replace(self.flow.nodes[n], name=renamed[n]) if n in new else self.flow.nodes[n]
            for n in order
        )
        used = {b for node in nodes for b in (*node.reads, *node.writes)}
        used |= self.flow.needed | self.flow.inputs
        buffers = {name: b for name, b in self.graph.buffers.items() if name in used}
        graph = replace(self.graph, nodes=nodes, buffers=buffers)
        return Plan(graph, self._decisions(plan, graph, renamed))

    # -- one Comp --

    def _calls(self, number: NodeId) -> list[NodeId]:
        node = self.flow.nodes.get(number)
        if not isinstance(node, Comp):
            return []
        writers = (w for b in node.reads for w in self.flow.writers[b])
        return [w for w in dict.fromkeys(writers) if is_product(self.flow.nodes[w])]

    def _offer(self, calls: tuple[NodeId, ...], number: NodeId) -> _Offer | Refusal:
        comp = self._merged(calls, number)
        if isinstance(comp, Refusal):
            return comp
        buffers = self.graph.buffers
        accesses = addressed(comp, buffers, self.graph.hints)
        contraction = contraction_of(accesses)
        if contraction is None:
            return Refusal(Reason.PRODUCT, comp.name)
        chosen = self.choose(accesses, contraction, buffers, self.table, self.graph.hints)
        if not isinstance(chosen, ProductSchedule):
            return Refusal(Reason.TEMPLATE, chosen)
        price = _Prices(self.graph, self.table)
        before = sum(price.call(self.flow.nodes[c]) for c in calls)
        before += price.comp(self.flow.nodes[number]).seconds
        after = price.fused(accesses, contraction, chosen)
        return _Offer(calls, comp, before, after)

    def _merged(self, calls: tuple[NodeId, ...], number: NodeId) -> Comp | Refusal:
        comp = self.flow.nodes[number]
        if not is_pointwise(comp):
            return Refusal(Reason.PRODUCT, comp.name)
        for call in calls:
            made = product_comp(self.flow.nodes[call], self.graph.buffers)
            if made is None:
                return Refusal(Reason.TEMPLATE, "no 16-bit matrices in plain windows on a GPU")
            refusal = self._hazard(call, number)
            if refusal:
                return refusal
            keep = frozenset(
                b for b in made.writes if self.flow.is_needed_after(b, number)
            )
            merged = merge(made, comp, Rules(keep, self.shapes))
            if isinstance(merged, Refusal):
                return merged
            comp = merged
        return kernel_refusal(comp, 0, self.table) or comp

    def _hazard(self, call: NodeId, number: NodeId) -> Refusal | None:
        through = self.flow.detour(call, number)
        if through is not None:
            return Refusal(Reason.REENTRY, self.flow.nodes[through].name)
        changed = [b for b in self.flow.nodes[call].reads if self.flow.is_mutated(b)]
        return Refusal(Reason.MUTATION, changed[0]) if changed else None

    def _take(self, offer: _Offer, number: NodeId) -> None:
        members = (*(self.flow.nodes[c].name for c in offer.calls), self.flow.nodes[number].name)
        new = number
        for call in offer.calls:
            new = self.flow.merge(call, new, offer.comp)
        self.fused.append((new, members, offer))

    # -- what is told --

    def _refuse(self, call: NodeId, number: NodeId, results: Mapping) -> None:
        """The reason of the smallest set that the call was offered in."""
        group = min((g for g in results if call in g), key=len)
        why = results[group]
        if isinstance(why, _Offer):
            sides = f"{why.before_s * 1e6:.1f} us apart, {why.after_s * 1e6:.1f} us together"
            why = Refusal(Reason.SLOWER, sides)
        one, other = self.flow.nodes[call], self.flow.nodes[number]
        exchanged = set(one.writes).intersection(other.reads)
        at_stake = sum(bytes_of(self.graph.buffers[b], self.graph.hints) for b in exchanged)
        record = RefusalRecord(one.name, other.name, why.reason, why.evidence, at_stake)
        self.refused[one.name, other.name] = record

    def _decisions(self, plan: Plan, graph: Graph, renamed) -> tuple[Decision, ...]:
        price = _Prices(self.graph, self.table)
        made = {n.name: n for n in graph.nodes}
        old = {f.kernel: f for f in plan.fusions}
        fusions, names = [], {}
        for number, members, offer in self.fused:
            comp = made[renamed[number]]
            fusions.append(_fusion(comp, members, offer, old, price))
            names.update(dict.fromkeys(members, comp.name))
        kept = [d for d in plan.decisions if not (isinstance(d, Fusion) and d.kernel in names)]
        kept = [d for d in kept if not self._is_outdated(d, names)]
        told = (*kept, *self.refused.values())
        return (*fusions, *(_renamed(d, names) for d in told))

    def _is_outdated(self, decision: Decision, names: Mapping[str, str]) -> bool:
        """A refusal between what is one kernel now, or for which there is a better reason."""
        if not isinstance(decision, RefusalRecord):
            return False
        pair = decision.producer, decision.consumer
        together = names.get(pair[0], "") == names.get(pair[1])
        return together or pair in self.refused


def _renamed(decision: Decision, names: Mapping[str, str]) -> Decision:
    if not isinstance(decision, RefusalRecord):
        return decision
    producer, consumer = (names.get(n, n) for n in (decision.producer, decision.consumer))
    return replace(decision, producer=producer, consumer=consumer)


def _sets(calls: list[NodeId], flow: Flow) -> Iterator[tuple[NodeId, ...]]:
    """All at once, those with one left operand, each alone."""
    found = {tuple(calls): None}
    for call in calls:
        left = flow.nodes[call].args
        same = tuple(c for c in calls if flow.nodes[c].args[:1] == left[:1])
        found[same] = None
    found.update(((call,), None) for call in calls)
    return iter(found)


def _fusion(comp: Comp, members, offer: _Offer, old, price: _Prices) -> Fusion:
    """What became of the calls and their consumer, which may have been a fusion itself."""
    *calls, consumer = members
    before = old.get(consumer)
    parts = before.members if before else (consumer,)
    nodes = {n.name: n for n in price.graph.nodes}
    call_bytes = sum(price.moved(nodes[n]) for n in calls)
    own_bytes = before.bytes_before if before else price.comp(nodes[consumer]).bytes_moved
    return Fusion(
        kernel=comp.name,
        members=(*calls, *parts),
        origins=comp.origins,
        bytes_before=call_bytes + own_bytes,
        bytes_after=price.moved(comp),
        launches_before=len(calls) + (before.launches_before if before else 1),
        launches_after=1,
        saved_us=offer.gain_s * 1e6 + (before.saved_us if before else 0.0),
    )


@dataclass(frozen=True, slots=True)
class _Prices:
    graph: Graph
    table: DeviceTable

    def comp(self, comp: Comp) -> Cost:
        return cost(comp, self.graph.buffers, self.graph.hints, self.table)

    def call(self, node: Extern) -> float:
        """Seconds of a library's product."""
        made = addressed(product_comp(node, self.graph.buffers), self.graph.buffers)
        work = self._work(made, contraction_of(made))
        return seconds(work, "library", self.table)

    def moved(self, node: Node) -> int:
        """Bytes of what the node reads and writes, each once."""
        return self._bytes((*node.reads, *node.writes))

    def fused(self, accesses: Accesses, form: Contraction, chosen: ProductSchedule) -> float:
        pair = chosen.form == "gluon" and len(form.products) > 1
        work = self._work(accesses, form)
        return seconds(work, "gluon pair" if pair else chosen.form, self.table)

    def _work(self, accesses: Accesses, form: Contraction) -> Work:
        def extent(axes) -> int:
            return hint(product(accesses.comp.extent(a) for a in axes), self.graph.hints)

        batch, rows, columns = extent(form.batch), extent(form.rows), extent(form.columns)
        factors = {v for p in form.products for v in (p.left_load, p.right_load)}
        others = {
            i.buffer
            for v, i in enumerate(accesses.comp.body)
            if isinstance(i, Load) and v not in factors
        }
        moved = self._bytes((*others, *accesses.comp.writes))
        more = max(0, moved - 2 * batch * rows * columns)
        return Work(batch, rows, columns, extent(form.depth), len(form.products), more)

    def _bytes(self, names) -> int:
        unique = dict.fromkeys(names)
        return sum(bytes_of(self.graph.buffers[n], self.graph.hints) for n in unique)
