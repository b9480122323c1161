"""Products of one operand in one kernel, each with its reader, where a reader needs several columns
of a head at a point: queries and keys with their rotary embedding, values beside them.

    extern q = mm(x, a);  extern v = mm(x, b)
    comp y[m, h, d:64] = q[m, h, d] * c + q[m, h, d+-32] * s
 -> comp [m, n, n_in:32, k] { a product for each half of a head (products_columns), heads side by
                              side (products_concat); store y, y + 32, v, v + 32 }

Each by itself would be a kernel with too few tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchweld.ir.nodes import Comp, Reduce
from torchweld.kernels.products_columns import joined
from torchweld.kernels.products_comp import is_product, left_operand
from torchweld.kernels.products_concat import concatenated
from torchweld.kernels.products_kernel import Kernel, Offer, Workshop
from torchweld.kernels.products_side import FARTHEST, independent
from torchweld.plan.flow import NodeId
from torchweld.plan.merge import Rules
from torchweld.plan.moves import is_pointwise
from torchweld.plan.refusals import Refusal


@dataclass(frozen=True, slots=True)
class _Member:
    """A product alone (`plain`), and with the Comp that alone reads it, where they merge."""

    nodes: tuple[NodeId, ...]
    plain: Comp
    comp: Comp

    @property
    def has_parts(self) -> bool:
        return sum(isinstance(i, Reduce) for i in self.comp.body) > 1


def join_heads(shop: Workshop) -> None:
    """Joins products of one operand and their readers where that gains."""
    for number in shop.flow.order():
        node = shop.flow.nodes.get(number)
        members = _members(shop, number) if node and is_product(node) else []
        offer = _offer(shop, members) if members else None
        if offer is not None and offer.pays():
            shop.take(offer)


def _members(shop: Workshop, number: NodeId) -> list[_Member]:
    """`number` and the next products of its left operand, unless none has a reader in parts."""
    nodes, order = shop.flow.nodes, shop.flow.order()
    near = (n for n in order[order.index(number) :][:FARTHEST] if is_product(nodes[n]))
    left = left_operand(nodes[number])
    alike = independent(shop, [n for n in near if left_operand(nodes[n]) == left])
    found = [_member(shop, n, alike) for n in alike]
    parts = None not in found and any(m.has_parts for m in found)
    return found if parts and len(found) > 1 else []


def _member(shop: Workshop, call: NodeId, alike: Sequence[NodeId]) -> _Member | None:
    nodes, flow = shop.flow.nodes, shop.flow
    plain = shop.product(nodes[call])
    if isinstance(plain, Refusal):
        return None
    (result,) = nodes[call].writes
    reader = next(iter(flow.readers.get(result, ())), None)
    alone = reader is not None and not flow.is_needed_after(result, reader)
    if not alone or not _reads_one(shop, reader, alike):
        return _Member((call,), plain, plain)
    comp = joined(plain, nodes[reader], Rules(frozenset(), shop.shapes))
    together = isinstance(comp, Comp) and shop.hazard(call, reader) is None
    return _Member((call, reader), plain, comp) if together else _Member((call,), plain, plain)


def _reads_one(shop: Workshop, reader: NodeId, calls: Sequence[NodeId]) -> bool:
    """Whether a node is a pointwise Comp that reads one of `calls`."""
    node = shop.flow.nodes[reader]
    if not isinstance(node, Comp) or not is_pointwise(node):
        return False
    writers = {w for b in node.reads for w in shop.flow.writers[b]}
    return len(writers.intersection(calls)) == 1


def _offer(shop: Workshop, members: Sequence[_Member]) -> Offer | None:
    """All in one kernel; before: the products in one, where there is such a kernel, then those
    readers that need several columns."""
    place = shop.flow.order().index
    last, *others = sorted((n for m in members for n in m.nodes), key=place, reverse=True)
    if any(shop.hazard(n, last) for n in others):
        return None
    comp = concatenated([m.comp for m in members])
    kernel = comp and shop.kernel(comp)
    if not isinstance(kernel, Kernel):
        return None
    readers = [m.nodes[1] for m in members if m.has_parts]
    apart = sum(shop.prices.comp_s(shop.flow.nodes[n]) for n in readers)
    before = apart + _without_parts_s(shop, members)
    nodes = (*others, last)  # readers first: a product is not merged past its own
    return Offer(nodes, comp, None, before, kernel.seconds, kernel.leeway)


def _without_parts_s(shop: Workshop, members: Sequence[_Member]) -> float:
    """Of the products and of those readers that need one column at a point."""
    comp = concatenated([m.plain if m.has_parts else m.comp for m in members])
    kernel = comp and shop.kernel(comp)
    alone = [n for m in members for n in m.nodes[: 1 if m.has_parts else 2]]
    calls = [shop.flow.nodes[n] for n in alone]
    each = sum(shop.prices.call_s(n) if is_product(n) else shop.prices.comp_s(n) for n in calls)
    return min(each, kernel.seconds) if isinstance(kernel, Kernel) else each
