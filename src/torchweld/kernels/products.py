"""Products of matrices joined with what is done to their results.

    extern t = mm(x, w);  comp y = gelu(t)          ->  comp y [m, n, k] { sum over k; gelu; store }
    extern g = mm(x, a);  extern u = mm(x, b);
    comp y = gelu(g) * u                            ->  one comp with two products

After planning, each Comp that reads results of products is offered every set of them that might
share its kernel. One that also reduces is cut, if what it reduces is stored anyhow. A set is taken
if a template generates the kernel, and if it is predicted to be faster than the library's calls and
the Comp by a margin; the best set wins. Everything else stays a library call, with the reason on
record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Union

from torchweld.core.device import DeviceTable
from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer, Comp, Graph
from torchweld.kernels.products_apart import Halves, halves
from torchweld.kernels.products_columns import join_columns
from torchweld.kernels.products_comp import is_product, product_comp
from torchweld.kernels.products_cost import Prices
from torchweld.kernels.products_told import Taken, decisions
from torchweld.plan.decisions import Plan
from torchweld.plan.flow import Flow, NodeId
from torchweld.plan.merge import Rules, merge
from torchweld.plan.moves import is_pointwise
from torchweld.plan.names import kernel_names
from torchweld.plan.refusals import Reason, Refusal
from torchweld.rewrite.flow import without_unused_buffers
from torchweld.schedule.access import Accesses, addressed
from torchweld.schedule.contraction import TENSOR_DTYPES, Contraction, contraction_of
from torchweld.schedule.product import ProductSchedule

MARGIN = 0.02  # of the time before, that a fusion must be predicted to save

# (accesses, contraction, buffers, device, hints) -> how a template tiles it, or why none does
Choose = Callable[
    [Accesses, Contraction, Mapping[str, Buffer], DeviceTable, Mapping[str, int]],
    Union[ProductSchedule, str],
]


@dataclass(frozen=True, slots=True)
class Offer:
    """`comp`, and then `rest`, in the place of `calls` and their consumer."""

    calls: tuple[NodeId, ...]
    comp: Comp
    rest: Comp | None
    before_s: float
    after_s: float

    @property
    def gain_s(self) -> float:
        return self.before_s - self.after_s

    @property
    def pays(self) -> bool:
        return self.gain_s > MARGIN * self.before_s


def form_products(plan: Plan, table: DeviceTable, options: Options, choose: Choose) -> Plan:
    """`plan` with products moved into the kernels that read their results, where that is predicted
    to be faster, and the decisions about each."""
    if table.kind != "cuda" or options.numerics != "contract" or not options.fuse:
        return plan
    former = Former(plan.graph, table, choose)
    for number in former.flow.order():
        former.visit(number)
    graph, taken = former.finished()
    return Plan(graph, decisions(plan, taken, former.refused, former.prices))


class Former:
    """Visits the Comps of one graph in order. `taken`: what became of calls and their reader, by
    the kernel's number; `refused`: why a call stays, by the names of itself and its reader."""

    def __init__(self, graph: Graph, table: DeviceTable, choose: Choose) -> None:
        self.graph, self.table, self.choose = graph, table, choose
        self.flow, self.prices = Flow(graph), Prices(graph, table)
        self.shapes = {name: b.shape for name, b in graph.buffers.items()}
        self.taken: dict[NodeId, Taken] = {}
        self.refused: dict[tuple[str, str], Refusal] = {}

    def visit(self, number: NodeId) -> None:
        """Fuses the Comp `number` with products that it reads, if any set of them gains."""
        calls = self._calls(number)
        if not calls:
            return
        results = {group: self._offer(group, number) for group in self._sets(calls)}
        offers = [o for o in results.values() if isinstance(o, Offer) and o.pays]
        best = max(offers, key=lambda o: o.gain_s, default=None)
        consumer = self.flow.nodes[number].name
        for call in calls:
            if best is None or call not in best.calls:
                pair = self.flow.nodes[call].name, consumer
                self.refused[pair] = _why(call, results)
        if best is not None:
            self._take(best, number)

    def finished(self) -> tuple[Graph, list[Taken]]:
        """The new graph, and its new kernels."""
        order = self.flow.order()
        new = [n for n in order if n in self.taken]
        others = [self.flow.nodes[n].name for n in order if n not in self.taken]
        names = dict(zip(new, kernel_names([self.flow.nodes[n] for n in new], others)))
        nodes = ((n, self.flow.nodes[n]) for n in order)
        nodes = tuple(replace(node, name=names.get(n, node.name)) for n, node in nodes)
        graph = without_unused_buffers(replace(self.graph, nodes=nodes))
        taken = (replace(t, comp=replace(t.comp, name=names[n])) for n, t in self.taken.items())
        return graph, list(taken)

    def _calls(self, number: NodeId) -> list[NodeId]:
        node = self.flow.nodes.get(number)
        if not isinstance(node, Comp):
            return []
        writers = (w for b in node.reads for w in self.flow.writers[b])
        return [w for w in dict.fromkeys(writers) if is_product(self.flow.nodes[w])]

    def _sets(self, calls: list[NodeId]) -> list[tuple[NodeId, ...]]:
        """All at once, those with one left operand, each alone."""
        left = {c: self.flow.nodes[c].args[:1] for c in calls}
        alike = [tuple(c for c in calls if left[c] == left[call]) for call in calls]
        return list(dict.fromkeys([tuple(calls), *alike, *((c,) for c in calls)]))

    def _offer(self, calls: tuple[NodeId, ...], number: NodeId) -> Offer | Refusal:
        parts = self._parts(calls, number)
        if parts is None:
            return Refusal(Reason.PRODUCT, self.flow.nodes[number].name)
        comp = self._merged(calls, number, parts.first)
        if isinstance(comp, Refusal):
            return comp
        accesses = addressed(comp, self.graph.buffers, self.graph.hints)
        contraction = contraction_of(accesses)
        if contraction is None:
            return Refusal(Reason.PRODUCT, comp.name)
        chosen = self.choose(
            accesses, contraction, self.graph.buffers, self.table, self.graph.hints
        )
        if isinstance(chosen, str):
            return Refusal(Reason.TEMPLATE, chosen)
        nodes = self.flow.nodes
        before = self.prices.apart_s([nodes[c] for c in calls], nodes[number])
        after = self.prices.fused_s(accesses, contraction, chosen)
        after += self.prices.comp_s(parts.rest) if parts.rest else 0.0
        return Offer(calls, comp, parts.rest, before, after)

    def _parts(self, calls: tuple[NodeId, ...], number: NodeId) -> Halves | None:
        """The consumer, cut where it does more than the product's kernel can."""
        node = self.flow.nodes[number]
        if is_pointwise(node):
            return Halves(node, None)
        found = halves(node, {b for c in calls for b in self.flow.nodes[c].writes})
        return found if found and is_pointwise(found.first) else None

    def _merged(self, calls: tuple[NodeId, ...], number: NodeId, comp: Comp) -> Comp | Refusal:
        for call in calls:
            made = product_comp(self.flow.nodes[call], self.graph.buffers)
            if made is None or not self._is_narrow(made):
                return Refusal(Reason.TEMPLATE, "not 16-bit matrices in plain windows")
            refusal = self._hazard(call, number)
            if refusal:
                return refusal
            keep = frozenset(b for b in made.writes if self.flow.is_needed_after(b, number))
            comp = _joined(made, comp, Rules(keep, self.shapes))
            if isinstance(comp, Refusal):
                return comp
        return self._overload(comp) or comp

    def _overload(self, comp: Comp) -> Refusal | None:
        """Why a merged Comp is no good kernel. It may store to a buffer in several places."""
        both = set(comp.reads).intersection(comp.writes)
        if both:
            return Refusal(Reason.MUTATION, min(both))
        touched = len({*comp.reads, *comp.writes})
        if touched > self.table.max_buffers:
            return Refusal(Reason.TOO_MANY_BUFFERS, f"{touched} of {self.table.max_buffers}")
        return None

    def _is_narrow(self, comp: Comp) -> bool:
        return all(self.graph.buffers[n].dtype in TENSOR_DTYPES for n in comp.reads)

    def _hazard(self, call: NodeId, number: NodeId) -> Refusal | None:
        """What would go wrong if the call were made where its reader is."""
        through = self.flow.detour(call, number)
        if through is not None:
            return Refusal(Reason.REENTRY, self.flow.nodes[through].name)
        changed = [b for b in self.flow.nodes[call].reads if self.flow.is_mutated(b)]
        return Refusal(Reason.MUTATION, changed[0]) if changed else None

    def _take(self, offer: Offer, number: NodeId) -> None:
        calls = tuple(self.flow.nodes[c].name for c in offer.calls)
        consumer, new = self.flow.nodes[number].name, number
        if offer.rest is not None:
            new = self.flow.split(number, offer.comp, offer.rest)
        for call in offer.calls:
            new = self.flow.merge(call, new, offer.comp)
        self.taken[new] = Taken(
            offer.comp, offer.rest, calls, consumer, offer.before_s, offer.after_s
        )


def _joined(made: Comp, reader: Comp, rules: Rules) -> Comp | Refusal:
    merged = merge(made, reader, rules)
    if not isinstance(merged, Refusal) or merged.reason != Reason.ROWS or rules.keep:
        return merged
    return join_columns(made, reader)


def _why(call: NodeId, results: Mapping[tuple[NodeId, ...], Offer | Refusal]) -> Refusal:
    """The reason of the smallest set that the call was offered in."""
    answer = results[min((group for group in results if call in group), key=len)]
    if isinstance(answer, Refusal):
        return answer
    sides = f"{answer.before_s * 1e6:.1f} us apart, {answer.after_s * 1e6:.1f} us together"
    return Refusal(Reason.SLOWER, sides)
