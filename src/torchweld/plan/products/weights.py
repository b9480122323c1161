"""Weights that are kept in fewer bits, dequantised inside the products of few rows that read them.

    comp w [n, k] { store w[n, k] round((cast q[n, k]) * s[n]) }
    extern y = mm(x, w.t()), w used nowhere else
 -> comp y [m, n, k] { sum over k of x[m, k] * round((cast q[n, k]) * s[n]) }

Nothing is known here of formats: any pointwise computation counts that reads fewer bytes than it
makes. A kernel that makes several weights side by side becomes part of each product that reads one
of them. Weights are rounded to 16 bits as they were in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir.nodes import Comp, Instr, Load
from torchweld.ir.simplify import simplify
from torchweld.plan.flow import NodeId
from torchweld.plan.merge import Rules, merge
from torchweld.plan.moves import is_pointwise
from torchweld.plan.products.kernel import MARGIN, Kernel, Offer, Workshop
from torchweld.plan.refusals import Refusal
from torchweld.templates.gemm.comp import is_product, left_operand
from torchweld.templates.pointwise_reduce.price import bytes_of


def join_weights(shop: Workshop) -> dict[tuple[str, str], Refusal]:
    """Moves what makes right factors out of fewer bytes into the products that read them, where
    that gains. Why one stays apart, by the names of itself and of a product."""
    refused: dict[tuple[str, str], Refusal] = {}
    for number in reversed(shop.flow.order()):  # what unpacks for a kernel that joined, joins too
        makers = _makers(shop, number)
        if not makers:
            continue
        name = shop.flow.nodes[number].name
        offers = _offers(shop, number, makers)
        if isinstance(offers, Refusal):
            refused |= {(name, shop.flow.nodes[reader].name): offers for reader in makers}
            continue
        for offer in offers:
            shop.take(offer, name)
        shop.flow.remove(number)
    return refused


def _makers(shop: Workshop, number: NodeId) -> dict[NodeId, Comp]:
    """By the products that read a node's results, and nothing else does: what of it makes their
    right factors. Empty if it is not pointwise, or reads as much as it makes."""
    node, buffers, hints = shop.flow.nodes.get(number), shop.graph.buffers, shop.graph.hints
    if not is_pointwise(node):
        return {}
    read, made = (sum(bytes_of(buffers[b], hints) for b in bs) for bs in (node.reads, node.writes))
    if not 0 < read < made:
        return {}
    found: dict[NodeId, list[str]] = {}
    for name in node.writes:
        reader = _product(shop, name)
        if reader is None:
            return {}
        found.setdefault(reader, []).append(name)
    return {reader: _only(node, names) for reader, names in found.items()}


def _product(shop: Workshop, name: str) -> NodeId | None:
    """The product that has a buffer as its right factor, if nothing else reads it."""
    readers = list(dict.fromkeys(shop.flow.readers[name]))
    if len(readers) != 1 or shop.flow.is_needed_after(name, *readers):
        return None
    (reader,) = readers
    node = shop.flow.nodes[reader]
    if is_product(node):
        return reader if name != left_operand(node).buffer else None
    kernel = shop.made(reader)
    return reader if kernel is not None and name not in kernel.left else None


def _only(maker: Comp, names: list[str]) -> Comp:
    """What of `maker` makes these results."""
    return simplify(replace(maker, stores=tuple(s for s in maker.stores if s.buffer in names)))


def _offers(
    shop: Workshop, number: NodeId, makers: Mapping[NodeId, Comp]
) -> list[Offer] | Refusal:
    """The kernels in the place of the products, if together they gain."""
    share_s = shop.prices.comp_s(shop.flow.nodes[number]) / len(makers)
    offers = []
    for reader, maker in makers.items():
        kernel = shop.hazard(number, reader) or _kernel(shop, maker, reader)
        if isinstance(kernel, Refusal):
            return kernel
        before_s = share_s + shop.now_s(reader)
        offers.append(Offer((reader,), kernel.comp, None, before_s, kernel.seconds, kernel.leeway))
    before_s, after_s = sum(o.before_s for o in offers), sum(o.after_s for o in offers)
    leeway = min(o.leeway for o in offers)
    whole = Offer(tuple(makers), offers[0].comp, None, before_s, after_s, leeway)
    return offers if whole.pays(MARGIN) else whole.refusal(MARGIN)


def _kernel(shop: Workshop, maker: Comp, reader: NodeId) -> Kernel | Refusal:
    """Of both together."""
    kernel = shop.kernel_of(reader)
    if isinstance(kernel, Refusal):
        return kernel
    merged = merge(maker, _marked(kernel), Rules(shapes=shop.shapes, eager=True))
    return merged if isinstance(merged, Refusal) else shop.kernel(merged)


def _marked(product: Kernel) -> Comp:
    """Its Comp; of a single row with the mark, on its left factor, that tells a library's product
    from a sum that a user wrote."""
    body = product.comp.body
    if product.rows != 1:
        return product.comp
    marked = (replace(i, exact=True) if _reads(i, product.left) else i for i in body)
    return replace(product.comp, body=tuple(marked))


def _reads(instr: Instr, buffers: frozenset[str]) -> bool:
    return isinstance(instr, Load) and instr.buffer in buffers
