"""Products of one operand and few rows in one kernel, each with its reader, where a reader needs
several columns of a head at a point: queries and keys with their rotary embedding, values beside
them.

    extern q = mm(x, a);  extern v = mm(x, b)
    comp y[m, h, d:64] = q[m, h, d] * c + q[m, h, d+-32] * s
 -> comp [m, n, n_in:32, k] { a product for each half of a head (columns.py), heads side by
                              side (concat.py); store y, y + 32, v, v + 32 }

Each by itself would be a kernel with too few tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from torchweld.ir.nodes import Comp, Load, Node, Reduce, needed, store_operands
from torchweld.ir.simplify import drop_dead
from torchweld.plan.flow import NodeId
from torchweld.plan.merge import Rules
from torchweld.plan.products.apart import is_elementwise
from torchweld.plan.products.columns import joined
from torchweld.plan.products.concat import concatenated
from torchweld.plan.products.kernel import MARGIN, Kernel, Offer, Workshop
from torchweld.plan.products.side import FARTHEST, independent
from torchweld.plan.refusals import Reason, Refusal
from torchweld.templates.gemm.comp import is_product, left_operand
from torchweld.templates.gemm.schedule import STREAMS


@dataclass(frozen=True, slots=True)
class _Member:
    """A product alone (`plain`), and with what `reader` makes of it, where they merge."""

    call: NodeId
    plain: Comp
    reader: NodeId | None
    comp: Comp

    @property
    def has_parts(self) -> bool:
        return sum(isinstance(i, Reduce) for i in self.comp.body) > 1


def join_heads(shop: Workshop) -> dict[tuple[str, str], Refusal]:
    """Joins products of one operand and their readers where that gains. Why those of one operand
    stay apart, by the names of the first and another."""
    refused: dict[tuple[str, str], Refusal] = {}
    for number in shop.flow.order():
        node = shop.flow.nodes.get(number)
        members = _members(shop, number) if node and is_product(node) else []
        offer = _leaves_some(shop, members) or _offer(shop, members) if members else None
        if isinstance(offer, Offer) and offer.pays(MARGIN):
            shop.take(offer)
        elif offer is not None:
            why = offer.refusal(MARGIN) if isinstance(offer, Offer) else offer
            first, *others = (shop.flow.nodes[m.call].name for m in members)
            refused |= {(first, other): why for other in others}
    return refused


def _members(shop: Workshop, number: NodeId) -> list[_Member]:
    """`number`, the first product of its left operand, and the next ones, if the reader of one
    needs several columns at a point."""
    nodes, order = shop.flow.nodes, shop.flow.order()
    place, left = order.index(number), left_operand(nodes[number])
    near = [n for n in order[max(0, place - FARTHEST) : place + FARTHEST] if is_product(nodes[n])]
    alike = [n for n in near if left_operand(nodes[n]) == left]
    if len(alike) < 2 or alike[0] != number or independent(shop, alike) != alike:
        return []
    found = [_member(shop, n, alike) for n in alike]
    if None in found or not any(m.has_parts for m in found):
        return []
    return found


def _leaves_some(shop: Workshop, members: Sequence[_Member]) -> Refusal | None:
    """That the reader of one product makes something of another, which does not join it."""
    readers = {m.reader for m in members}
    alone = (shop.flow.nodes[m.call].writes[0] for m in members if m.reader is None)
    left = next((b for b in alone if readers.intersection(shop.flow.readers.get(b, ()))), None)
    return Refusal(Reason.READERS, left) if left else None


def _member(shop: Workshop, call: NodeId, alike: Sequence[NodeId]) -> _Member | None:
    nodes, flow = shop.flow.nodes, shop.flow
    plain = shop.product(nodes[call])
    if isinstance(plain, Refusal):
        return None
    (result,) = nodes[call].writes
    reader = next(iter(flow.readers.get(result, ())), None)
    if reader is not None and not flow.is_needed_after(result, reader):
        share = _share(nodes[reader], result, {b for n in alike for b in nodes[n].writes})
        comp = share and joined(plain, share, Rules(frozenset(), shop.shapes))
        if isinstance(comp, Comp) and shop.hazard(call, reader) is None:
            return _Member(call, plain, reader, comp)
    return _Member(call, plain, None, plain)


def _share(reader: Node, result: str, results: set[str]) -> Comp | None:
    """What an elementwise Comp makes of `result`; None if it makes anything of several `results`,
    or of none, which would be left over."""
    if not isinstance(reader, Comp) or not is_elementwise(reader):
        return None
    body, stores = reader.body, reader.stores
    needs = [{body[v].buffer for v in needed(body, store_operands(s)) if isinstance(body[v], Load)}
             & results for s in stores]  # fmt: skip
    if any(len(n) != 1 for n in needs):
        return None
    mine = tuple(s for s, n in zip(stores, needs) if result in n)
    return drop_dead(replace(reader, stores=mine))


def _offer(shop: Workshop, members: Sequence[_Member]) -> Offer | Refusal:
    """All in one kernel; before: the products in one, where there is such a kernel, then those
    readers that need several columns."""
    nodes = {n for m in members for n in (m.call, m.reader) if n is not None}
    ordered = sorted(nodes, key=shop.flow.order().index)
    hazard = next((h for a, b in combinations(ordered, 2) if (h := shop.hazard(a, b))), None)
    comp = None if hazard else concatenated([m.comp for m in members])
    if comp is None:
        return hazard or Refusal(Reason.TEMPLATE, "their rows, depths or heads differ")
    kernel = shop.kernel(comp)
    if isinstance(kernel, Refusal):
        return kernel
    if kernel.schedule.form not in STREAMS:  # rotations take 1.7 % of a Llama's time
        return Refusal(Reason.MARGIN, f"of {kernel.rows} rows, what follows takes little time")
    before = _apart_s(shop, members)
    *others, last = ordered
    nodes = (*reversed(others), last)  # readers first: a product is not merged past its own
    return Offer(nodes, comp, None, before, kernel.seconds, kernel.leeway)


def _apart_s(shop: Workshop, members: Sequence[_Member]) -> float:
    """The products, in one kernel if there is such, with the readers that need one column at a
    point; then the other readers."""
    turned = {m.reader for m in members if m.has_parts}
    single = {m.reader for m in members} - turned - {None}
    readers_s, single_s = (
        sum(shop.prices.comp_s(shop.flow.nodes[n]) for n in each) for each in (turned, single)
    )
    comp = concatenated([m.plain if m.has_parts else m.comp for m in members])
    kernel = comp and shop.kernel(comp)
    each = single_s + sum(shop.prices.call_s(shop.flow.nodes[m.call]) for m in members)
    return readers_s + (min(each, kernel.seconds) if isinstance(kernel, Kernel) else each)
