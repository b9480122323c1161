"""Products in a row as one kernel, whose intermediates are never in memory.

    comp t = relu(x @ a);  extern y = mm(t, b)      ->  comp y: a chain (templates/chain/form.py)

After products have their epilogues, each kernel that makes products takes in what reads its
results row by row, or makes what it reads: the next product, what is pointwise. Each step is an
offer: the template for chains supports it, and predicts that it is faster than both apart by a
margin. Why a product stays apart from the next is on record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torchweld.core.options import Options
from torchweld.ir.nodes import Comp, Node
from torchweld.plan.chains.absorb import absorbed
from torchweld.plan.decisions import Plan
from torchweld.plan.flow import NodeId
from torchweld.plan.products.kernel import (
    MARGIN,
    Judge,
    Offer,
    Workshop,
    crowded,
    is_call,
    overload,
)
from torchweld.plan.products.told import Pair, decisions
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target
from torchweld.templates import registry
from torchweld.templates.chain import template
from torchweld.templates.chain.form import Chain, chain_or_reason, loads_of_a_width, products_of
from torchweld.templates.gemm.comp import is_product
from torchweld.templates.template import Choose, Kernel, Problem

# Tiles that are loaded for one tile of a factor. A window of 9 elements before two products spilled
# 2.5 KB a thread, and took 1100 us where 62 were predicted (TinyViT, H100).
_MOST_LOADS = 4


def form_chains(plan: Plan, target: Target, options: Options, choose: Choose) -> Plan:
    """`plan` with products in a row as chains where those are predicted to be faster."""
    if options.numerics != "contract" or not options.fuse or target.products is None:
        return plan
    shop = Workshop(plan.graph, Judge(plan.graph, target, choose))
    bench = _Bench(shop, target, choose)
    refused: dict[Pair, Refusal] = {}
    for number in shop.flow.order():
        if number in shop.flow.nodes and bench.begins(number):
            refused |= bench.grow(number)
    graph, taken = shop.finished()
    return Plan(graph, decisions(plan, taken, refused, shop.prices))


@dataclass(slots=True)
class _Bench:
    """A graph in the making. `seconds`: of the chains in it."""

    shop: Workshop
    target: Target
    choose: Choose
    seconds: dict[NodeId, float] = field(default_factory=dict)

    def begins(self, number: NodeId) -> bool:
        """Whether a chain may begin with a node: a product whose weight fits on chip."""
        comp = self._comp(self.shop.flow.nodes[number])
        buffers = self.shop.graph.buffers
        return isinstance(comp, Comp) and template.may_begin(comp, buffers, self.target)

    def grow(self, number: NodeId) -> dict[Pair, Refusal]:
        """Lets a node take in what it can, one at a time; why it takes no other product, by
        names."""
        refused: dict[Pair, Refusal] = {}
        todo = list(self._near(number))
        while todo:
            members = todo.pop(0)
            offer = self._offer(members)
            if isinstance(offer, Offer) and self._pays(offer, set(members) - {number}):
                number = self._take(offer)
                todo, refused = list(self._near(number)), {}
            elif members[0] == number and self._reads_as_product(members[1], number):
                one, other = (self.shop.flow.nodes[n].name for n in members[:2])
                refused[one, other] = offer.refusal(MARGIN) if isinstance(offer, Offer) else offer
        return refused

    def _reads_as_product(self, other: NodeId, number: NodeId) -> bool:
        nodes = self.shop.flow.nodes
        return self.is_product(other) and bool(set(nodes[number].writes) & set(nodes[other].reads))

    def _near(self, number: NodeId) -> Iterator[tuple[NodeId, ...]]:
        """What may become one with a node, each after what it reads: a reader, alone and with a
        product behind it; who makes what the node reads."""
        flow = self.shop.flow
        node = flow.nodes[number]
        for one in self._readers(number):
            yield number, one
            if not self.is_product(one):
                more = filter(self.is_product, self._readers(one))
                yield from ((number, one, two) for two in more)
        writers = {w for b in node.reads for w in flow.writers[b]}
        yield from ((one, number) for one in self._in_order(writers) if not self.is_product(one))

    def _readers(self, number: NodeId) -> list[NodeId]:
        flow = self.shop.flow
        return self._in_order({r for b in flow.nodes[number].writes for r in flow.readers[b]})

    def _in_order(self, numbers: set[NodeId]) -> list[NodeId]:
        return sorted(numbers, key=self.shop.flow.place)

    def is_product(self, number: NodeId) -> bool:
        """Whether a node makes products, and is no chain."""
        node = self.shop.flow.nodes[number]
        apart = number not in self.seconds
        return apart and (is_product(node) or (isinstance(node, Comp) and bool(products_of(node))))

    def _comp(self, node: Node) -> Comp | Refusal | None:
        if isinstance(node, Comp):
            return node
        return self.shop.product(node) if is_product(node) else None

    def _offer(self, members: tuple[NodeId, ...]) -> Offer | Refusal:
        """The chain in the place of nodes, each of which is taken in by those before it."""
        flow, every = self.shop.flow, set(members)
        refusal = crowded((flow.nodes[n] for n in members), self.target) or self._hazard(every)
        if refusal:
            return refusal
        made = [self._comp(flow.nodes[n]) for n in members]
        if not all(isinstance(comp, Comp) for comp in made):
            why = next((m for m in made if isinstance(m, Refusal)), None)
            return why or Refusal(Reason.EXTERN, flow.nodes[members[-1]].name)
        comp, *others = made
        for count, other in enumerate(others, 2):
            keep = {b for b in comp.writes if flow.is_needed_after(b, *members[:count])}
            comp = absorbed(comp, other, keep)
            if isinstance(comp, Refusal):
                return comp
        kernel = self._kernel(comp)
        if isinstance(kernel, Refusal):
            return kernel
        before_s = sum(map(self._now_s, members))
        *first, last = self._in_order(every)
        return Offer((*reversed(first), last), comp, None, before_s, kernel.predicted_s)

    def _hazard(self, every: set[NodeId]) -> Refusal | None:
        """What would go wrong if some nodes were one."""
        flow = self.shop.flow
        for number in every:
            for between in flow.before[number] - every:
                if any(flow.is_before(one, between) for one in every):
                    return Refusal(Reason.REENTRY, flow.nodes[between].name)
            changed = [b for b in flow.nodes[number].reads if flow.is_mutated(b)]
            if changed:
                return Refusal(Reason.MUTATION, changed[0])
        return None

    def _pays(self, offer: Offer, others: set[NodeId]) -> bool:
        """Whether it saves a share of the others' time: what is wrong in the prediction of the
        chain is on both sides."""
        return offer.gain_s > MARGIN * sum(map(self._now_s, others))

    def _kernel(self, comp: Comp) -> Kernel | Refusal:
        """What the template makes of a chain."""
        refusal = overload(comp, self.target)
        if refusal:
            return refusal
        chain = chain_or_reason(comp)
        loads = loads_of_a_width(comp, chain) if isinstance(chain, Chain) else 0
        if loads > _MOST_LOADS:
            return Refusal(Reason.SPILL, f"{loads} tiles for one, at most {_MOST_LOADS}")
        graph = self.shop.graph
        problem = Problem(comp, graph.buffers, self.target, graph.hints, self.choose)
        made = registry.tried(template.TEMPLATE.name, problem)
        if isinstance(made, Kernel):
            return made
        return Refusal(Reason.TEMPLATE, str(made or chain))

    def _now_s(self, number: NodeId) -> float:
        """Seconds of a node as things stand."""
        node = self.shop.flow.nodes[number]
        if number in self.seconds:
            return self.seconds[number]
        if is_call(node) or self.shop.made(number) is not None:
            return self.shop.now_s(number)
        return self.shop.prices.comp_s(node)

    def _take(self, offer: Offer) -> NodeId:
        self.shop.take(offer)
        number = max(self.shop.flow.nodes)
        self.seconds[number] = offer.after_s
        return number
