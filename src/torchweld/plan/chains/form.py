"""Products in a row as one kernel, whose intermediates are never in memory.

    comp t = relu(x @ a);  extern y = mm(t, b)      ->  comp y: a chain (templates/chain/form.py)

After products have their epilogues, each kernel that makes products takes in what reads its
results or its operands row by row: the next product, what is pointwise, sums over the rows (the
gradients of weights and biases). Each step is an offer: the template for chains supports it, and
predicts that it is faster than both apart by a margin. Why a product stays apart from the next is
on record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torchweld.core.options import Options
from torchweld.ir.nodes import Comp, Node, Op, Reduce, value_axes
from torchweld.plan.chains.absorb import absorbed
from torchweld.plan.decisions import Plan
from torchweld.plan.flow import NodeId
from torchweld.plan.products.kernel import MARGIN, Judge, Offer, Workshop, is_call, overload
from torchweld.plan.products.told import Pair, decisions
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target
from torchweld.templates import registry
from torchweld.templates.chain import template
from torchweld.templates.chain.form import chain_or_reason
from torchweld.templates.gemm.comp import is_product
from torchweld.templates.template import Choose, Kernel, Problem


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
    known = {(d.producer, d.consumer) for d in plan.refusals if d.reason is not Reason.EXTERN}
    new = {pair: why for pair, why in refused.items() if pair not in known}
    return Plan(graph, decisions(plan, taken, new, shop.prices))


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
        return isinstance(comp, Comp) and makes_products(comp) and template.may_begin(
            comp, self.shop.graph.buffers, self.target)

    def grow(self, number: NodeId) -> dict[Pair, Refusal]:
        """Lets a node take in what it can, one at a time; why it takes no other product, by
        names."""
        refused: dict[Pair, Refusal] = {}
        todo = list(self._near(number))
        while todo:
            other = todo.pop(0)
            offer = self._offer(number, other)
            if isinstance(offer, Offer) and self._pays(offer, other):
                number = self._take(offer)
                todo, refused = list(self._near(number)), {}
            else:
                nodes = self.shop.flow.nodes
                why = offer.refusal(MARGIN) if isinstance(offer, Offer) else offer
                if set(nodes[number].writes) & set(nodes[other].reads) and self.is_product(other):
                    refused[nodes[number].name, nodes[other].name] = why
        return refused

    def _near(self, number: NodeId) -> Iterator[NodeId]:
        """Who reads what a node stores, then products that read what it reads, in order."""
        flow = self.shop.flow
        node = flow.nodes[number]
        after = {r for b in node.writes for r in flow.readers[b]}
        beside = {r for b in node.reads for r in flow.readers[b]} - after - {number}
        places = {n: k for k, n in enumerate(flow.order())}
        yield from sorted(after, key=places.__getitem__)
        yield from sorted(filter(self.is_product, beside), key=places.__getitem__)

    def is_product(self, number: NodeId) -> bool:
        """Whether a node makes products, and is no chain."""
        node = self.shop.flow.nodes[number]
        apart = number not in self.seconds
        return apart and (is_product(node) or (isinstance(node, Comp) and makes_products(node)))

    def _comp(self, node: Node) -> Comp | Refusal | None:
        if isinstance(node, Comp):
            return node
        return self.shop.product(node) if is_product(node) else None

    def _offer(self, number: NodeId, other: NodeId) -> Offer | Refusal:
        """The chain in the place of two nodes."""
        flow = self.shop.flow
        one, two = (self._comp(flow.nodes[n]) for n in (number, other))
        if not isinstance(one, Comp) or not isinstance(two, Comp):
            found = next((c for c in (one, two) if isinstance(c, Refusal)), None)
            return found or Refusal(Reason.EXTERN, flow.nodes[other].name)
        first, second = (number, other) if flow.comes_first(number, other) else (other, number)
        hazard = self.shop.hazard(first, second)
        if hazard:
            return hazard
        keep = {b for b in one.writes if flow.is_needed_after(b, number, other)}
        comp = absorbed(one, two, keep)
        kernel = comp if isinstance(comp, Refusal) else self._kernel(comp)
        if isinstance(kernel, Refusal):
            return kernel
        before_s = self._now_s(number) + self._now_s(other)
        return Offer((first, second), comp, None, before_s, kernel.predicted_s)

    def _pays(self, offer: Offer, other: NodeId) -> bool:
        """Whether it saves a share of the other's time: what is wrong in the prediction of the
        chain is on both sides."""
        return offer.gain_s > MARGIN * self._now_s(other)

    def _kernel(self, comp: Comp) -> Kernel | Refusal:
        """What the template makes of a chain."""
        refusal = overload(comp, self.target)
        if refusal:
            return refusal
        graph = self.shop.graph
        problem = Problem(comp, graph.buffers, self.target, graph.hints, self.choose)
        made = registry.tried(template.TEMPLATE.name, problem)
        if isinstance(made, Kernel):
            return made
        return Refusal(Reason.TEMPLATE, str(made or chain_or_reason(comp)))

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


def makes_products(comp: Comp) -> bool:
    """Whether it sums products of values that vary along different axes."""
    axes = value_axes(comp.body)
    sums = (comp.body[i.args[0]] for i in comp.body if isinstance(i, Reduce) and i.monoid == "sum")
    pairs = (made.args for made in sums if isinstance(made, Op) and made.name == "mul")
    return any(axes[one] != axes[other] for one, other in pairs)
