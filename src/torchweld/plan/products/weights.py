"""Weights that are kept in fewer bits, dequantised inside the products of few rows that read them.

    comp w [n, k] { store w[n, k] round((cast q[n, k]) * s[n]) }
    extern y = mm(x, w.t()), w used nowhere else
 -> comp y [m, n, k] { sum over k of x[m, k] * round((cast q[n, k]) * s[n]) }

Nothing is known here of formats: any pointwise computation counts that reads fewer bytes than it
makes. It keeps its roundings, so that weights are what they are in eager, to the bit.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Comp, Instr, Load
from torchweld.ir.simplify import simplify
from torchweld.plan.flow import NodeId
from torchweld.plan.merge import Rules, merge
from torchweld.plan.moves import is_pointwise
from torchweld.plan.products.kernel import MARGIN, Kernel, Offer, Workshop
from torchweld.plan.refusals import Refusal
from torchweld.templates.gemm.comp import is_product
from torchweld.templates.pointwise_reduce.price import bytes_of


def join_weights(shop: Workshop) -> dict[tuple[str, str], Refusal]:
    """Moves what makes a right factor out of fewer bytes into the product that reads it, where that
    gains. Why one stays apart, by the names of itself and of the product."""
    refused: dict[tuple[str, str], Refusal] = {}
    for number in shop.flow.order():
        maker = shop.flow.nodes.get(number)
        reader = _reader(shop, number)
        if reader is None:
            continue
        offer = _offer(shop, number, reader)
        if isinstance(offer, Offer) and offer.pays(MARGIN):
            shop.take(offer)
        else:
            why = offer.refusal(MARGIN) if isinstance(offer, Offer) else offer
            refused[maker.name, shop.flow.nodes[reader].name] = why
    return refused


def _reader(shop: Workshop, number: NodeId) -> NodeId | None:
    """The product whose right factor a node makes, for it alone, out of fewer bytes."""
    maker = shop.flow.nodes.get(number)
    if not is_pointwise(maker) or len(maker.writes) != 1:
        return None
    (made,), buffers, hints = maker.writes, shop.graph.buffers, shop.graph.hints
    readers = list(dict.fromkeys(shop.flow.readers[made]))
    if len(readers) != 1 or shop.flow.is_needed_after(made, *readers):
        return None
    read = sum(bytes_of(buffers[b], hints) for b in maker.reads)
    if not 0 < read < bytes_of(buffers[made], hints):
        return None
    kernel = shop.made(readers[0])
    return readers[0] if kernel is not None and made not in kernel.left else None


def _offer(shop: Workshop, number: NodeId, reader: NodeId) -> Offer | Refusal:
    """The kernel of both, and what it saves."""
    hazard = shop.hazard(number, reader)
    if hazard is not None:
        return hazard
    maker, product = shop.flow.nodes[number], _marked(shop.made(reader))
    merged = merge(simplify(maker), product, Rules(shapes=shop.shapes, eager=True))
    kernel = shop.kernel(merged) if isinstance(merged, Comp) else merged
    if not isinstance(kernel, Kernel):
        return kernel
    before = shop.prices.comp_s(maker) + shop.now_s(reader)
    return Offer((number, reader), kernel.comp, None, before, kernel.seconds, kernel.leeway)


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
