"""Products of matrices joined with what is done to their results.

    extern t = mm(x, w);  comp y = gelu(t)          ->  comp y [m, n, k] { sum over k; gelu; store }
    extern g = mm(x, a);  extern u = mm(x, b);
    comp y = gelu(g) * u                            ->  one comp with two products

After planning, each Comp that reads results of products is offered every set of them that might
share its kernel. One that also reduces is cut, if what it reduces is stored anyhow, or if it adds
rows up (`sums.py`). A set is taken if a template generates the kernel, and if it is predicted
to be faster than the library's calls and the Comp by a margin; the best set wins. Everything else
stays a library call, with the reason on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.core.options import Options
from torchweld.ir.nodes import Comp
from torchweld.plan.decisions import Plan
from torchweld.plan.flow import NodeId
from torchweld.plan.merge import Rules
from torchweld.plan.products.apart import Halves, halves, is_elementwise
from torchweld.plan.products.columns import joined
from torchweld.plan.products.heads import join_heads
from torchweld.plan.products.kernel import (
    MARGIN,
    Judge,
    Kernel,
    Leeway,
    Offer,
    Workshop,
    crowded,
    is_call,
    left_of,
    no_leeway,
)
from torchweld.plan.products.norm import join_norms, may_join
from torchweld.plan.products.side import join_siblings
from torchweld.plan.products.sums import sums_apart, with_room
from torchweld.plan.products.told import decisions
from torchweld.plan.products.weights import join_weights
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target
from torchweld.templates.gemm.schedule import STREAMS
from torchweld.templates.template import Choose

Answers = Mapping[tuple[NodeId, ...], "Offer | Refusal"]


def form_products(
    plan: Plan, table: Target, options: Options, choose: Choose, leeway: Leeway = no_leeway
) -> Plan:
    """`plan` with products moved into the kernels that read their results, and beside each other,
    where that is predicted to be faster, and the decisions about each."""
    if options.numerics != "contract" or not options.fuse:
        return plan
    plan = replace(plan, graph=with_room(plan.graph))
    judge = Judge(plan.graph, table, choose, leeway)
    for join in (join_readers, join_siblings, join_norms, join_weights):
        shop = Workshop(plan.graph, judge)
        refused = join(shop)
        graph, taken = shop.finished()
        plan = Plan(graph, decisions(plan, taken, refused, shop.prices))
    return plan


def join_readers(shop: Workshop) -> dict[tuple[str, str], Refusal]:
    """Fuses each Comp with products that it reads, if any set of them gains. Why a call stays, by
    the names of itself and its reader."""
    refused = join_heads(shop)
    for number in shop.flow.order():
        calls = _calls(shop, number)
        if not calls:
            continue
        nodes = shop.flow.nodes
        answers = {group: _offer(shop, group, number) for group in _sets(shop, calls)}
        best = _best([o for o in answers.values() if isinstance(o, Offer) and o.pays(MARGIN)])
        left = [c for c in calls if best is None or c not in best.nodes]
        refused |= {(nodes[c].name, nodes[number].name): _why(c, answers) for c in left}
        if best is not None:
            shop.take(best)
    return refused


def _calls(shop: Workshop, number: NodeId) -> list[NodeId]:
    """The products that a Comp reads."""
    node = shop.flow.nodes.get(number)
    if not isinstance(node, Comp):
        return []
    writers = (w for b in node.reads for w in shop.flow.writers[b])
    return [w for w in dict.fromkeys(writers) if is_call(shop.flow.nodes[w])]


def _sets(shop: Workshop, calls: list[NodeId]) -> list[tuple[NodeId, ...]]:
    """All at once, those with one left operand, each alone."""
    left = {c: left_of(shop.flow.nodes[c]) for c in calls}
    alike = [tuple(c for c in calls if left[c] == left[call]) for call in calls]
    return list(dict.fromkeys([tuple(calls), *alike, *((c,) for c in calls)]))


def _offer(shop: Workshop, calls: tuple[NodeId, ...], number: NodeId) -> Offer | Refusal:
    """The best of the ways to cut the consumer; a refusal if none is possible."""
    answers = [_offer_of(shop, calls, number, parts) for parts in _cuts(shop, calls, number)]
    offers = [a for a in answers if isinstance(a, Offer)]
    if offers:
        return min(offers, key=lambda o: o.after_s)
    return answers[0] if answers else Refusal(Reason.PRODUCT, shop.flow.nodes[number].name)


def _offer_of(
    shop: Workshop, calls: tuple[NodeId, ...], number: NodeId, parts: Halves
) -> Offer | Refusal:
    nodes = shop.flow.nodes
    comp = _merged(shop, calls, number, parts.first)
    kernel = comp if isinstance(comp, Refusal) else shop.kernel(comp)
    if not isinstance(kernel, Kernel):
        return kernel
    if kernel.schedule.form in STREAMS and len(comp.stores) > len(comp.writes):
        # H100, 16 rows: q and k with their rotation 8.6 us each; q, k, v in one stream 7.2
        return Refusal(Reason.SLOWER, "with few rows, the halves of each head would be read apart")
    results = [b for c in calls for b in nodes[c].writes]
    alone = not any(shop.flow.is_needed_after(b, number) for b in results)
    before = shop.prices.apart_s([nodes[c] for c in calls], nodes[number], alone)
    after = kernel.seconds + _rest_s(shop, parts.rest, kernel)
    return Offer((*calls, number), comp, parts.rest, before, after, kernel.leeway)


def _rest_s(shop: Workshop, rest: Comp | None, kernel: Kernel) -> float:
    """Of what a cut leaves: nothing, if it is a norm that its readers will take in."""
    if rest is None or may_join(shop, rest, kernel):
        return 0.0
    return shop.prices.comp_s(rest)


def _best(offers: list[Offer]) -> Offer | None:
    """The one that gains most; of those as good, the one that leaves the fewest calls."""
    most = max((o.gain_s - MARGIN * o.before_s for o in offers), default=0.0)
    good = (o for o in offers if o.gain_s >= most)
    return max(good, key=lambda o: (len(o.nodes), o.gain_s), default=None)


def _cuts(shop: Workshop, calls: tuple[NodeId, ...], number: NodeId) -> list[Halves]:
    """The consumer, cut where it does more than the product's kernel can."""
    node = shop.flow.nodes[number]
    if is_elementwise(node):
        return [Halves(node, None)]
    stored = halves(node, {b for c in calls for b in shop.flow.nodes[c].writes})
    found = stored if stored and is_elementwise(stored.first) else None, sums_apart(node)
    return [f for f in found if f]


def _merged(
    shop: Workshop, calls: tuple[NodeId, ...], number: NodeId, comp: Comp
) -> Comp | Refusal:
    refusal = crowded((comp, *(shop.flow.nodes[c] for c in calls)), shop.target)
    if refusal:
        return refusal
    for call in calls:
        made = shop.product(shop.flow.nodes[call])
        refusal = made if isinstance(made, Refusal) else shop.hazard(call, number)
        if refusal:
            return refusal
        keep = frozenset(b for b in made.writes if shop.flow.is_needed_after(b, number))
        comp = joined(made, comp, Rules(keep, shop.shapes))
        if isinstance(comp, Refusal):
            return comp
    return comp


def _why(call: NodeId, answers: Answers) -> Refusal:
    """The reason of the smallest set that the call was offered in."""
    answer = answers[min((group for group in answers if call in group), key=len)]
    return answer.refusal(MARGIN) if isinstance(answer, Offer) else answer
