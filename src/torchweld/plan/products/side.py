"""Products that share their left operand side by side in one kernel (queries, keys and values): as
several sums at each point where their columns are as many, or as one product of all columns
(`concat.py`); and products by themselves where a template of ours is faster than the library.

    extern k = mm(x, a);  extern v = mm(x, b)
 -> comp [m, n, k] { sum over k of x * a; sum over k of x * b; store k; store v }
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, pairwise

from torchweld.ir.nodes import Comp
from torchweld.ir.row_map import chunk_of
from torchweld.plan.flow import NodeId
from torchweld.plan.merge import Rules, merge
from torchweld.plan.products.concat import concatenated, is_plain
from torchweld.plan.products.kernel import Kernel, Offer, Workshop
from torchweld.plan.refusals import Reason, Refusal
from torchweld.templates.gemm.comp import is_product
from torchweld.templates.library.calls import with_gelu

MARGIN = 0.1  # of the time before: no traffic goes, only launches and idle multiprocessors
_CONCATENATED = 0.04  # three of 12608 x 768 x 768: 6 % less was predicted, and measured
_MOST_SIBLINGS = 3  # beside the first
FARTHEST = 32  # nodes between siblings: what the first needs must not wait for long


def join_siblings(shop: Workshop) -> dict[tuple[str, str], Refusal]:
    """Puts products side by side, or in a kernel of their own, where that gains. Why those of one
    operand stay apart, by the names of the first and another."""
    refused: dict[tuple[str, str], Refusal] = {}
    for number in shop.flow.order():
        if number not in shop.flow.nodes or _made(shop, number) is None:
            continue
        alike = _alike(shop, number)
        every = _concatenation(shop, alike)
        best = _best(shop, number, every)
        if every is not None:
            why = every if isinstance(every, Refusal) else every.refusal(_CONCATENATED)
            taken = best.nodes if best else ()
            first, *others = (shop.flow.nodes[n].name for n in alike)
            left = [o for o, n in zip(others, alike[1:]) if n not in taken or alike[0] not in taken]
            refused |= {(first, other): why for other in left}
        if best is not None:
            shop.take(best)
    return refused


def _best(shop: Workshop, number: NodeId, every: Offer | Refusal | None) -> Offer | None:
    """What gains most: `every` product of the operand as one, or some of equal sizes, or one."""
    siblings = _siblings(shop, number)
    sets = chain.from_iterable(combinations(siblings, n) for n in range(len(siblings) + 1))
    offers = (_offer(shop, (number, *others)) for others in sets)
    pays = [o for o in offers if o and o.pays(MARGIN)]
    if isinstance(every, Offer) and every.pays(_CONCATENATED):
        pays.append(every)
    return max(pays, key=lambda o: o.gain_s, default=None)


def _siblings(shop: Workshop, number: NodeId) -> list[NodeId]:
    """The next products of the same operand and sizes that do not wait for `number`."""
    order = shop.flow.order()
    near = order[order.index(number) + 1 :][:FARTHEST]
    own = shop.made(number)
    made = {n: _made(shop, n) for n in near if own.left}
    alike = [n for n, k in made.items() if k and (k.left, k.sizes) == (own.left, own.sizes)]
    return independent(shop, [number, *alike])[1:]


def independent(shop: Workshop, numbers: Sequence[NodeId]) -> list[NodeId]:
    """The first of `numbers` that do not wait for each other and work on the same rows: what is
    made some rows at a time must not be in memory together."""
    found: list[NodeId] = []
    chunk = {n: chunk_of(shop.flow.nodes[n].name) for n in numbers}
    for number in numbers:
        apart = any(shop.flow.is_before(n, number) for n in found)
        if not apart and chunk[number] == chunk[numbers[0]]:
            found.append(number)
    return found[: _MOST_SIBLINGS + 1]


def _alike(shop: Workshop, number: NodeId) -> list[NodeId]:
    """`number` and the next products of the same operand, rows and depth, one to a kernel."""
    order, own = shop.flow.order(), shop.made(number)
    near = order[order.index(number) :][:FARTHEST] if own.left else []
    made = ((n, _made(shop, n)) for n in near)
    alike = [n for n, k in made if k and _sides(k) == _sides(own) and is_plain(k.comp)]
    return independent(shop, alike)


def _made(shop: Workshop, number: NodeId) -> Kernel | None:
    """The kernel of a product that loses nothing by it."""
    return None if _has_gelu(shop, number) else shop.made(number)


def _has_gelu(shop: Workshop, number: NodeId) -> bool:
    """Whether the library's product will make the gelu that follows it too."""
    node, flow = shop.flow.nodes[number], shop.flow
    readers = flow.readers[node.writes[0]] if is_product(node) else ()
    if len(readers) != 1 or flow.is_needed_after(node.writes[0], *readers):
        return False
    reader = flow.nodes[next(iter(readers))]
    return isinstance(reader, Comp) and with_gelu(node, reader, shop.graph) is not None


def _sides(kernel: Kernel) -> tuple:
    """What products of one operand have in common."""
    batch, rows, _, depth = kernel.sizes
    return kernel.left, batch, rows, depth


def _concatenation(shop: Workshop, numbers: Sequence[NodeId]) -> Offer | Refusal | None:
    """Products of any numbers of columns in one kernel; None of a single one."""
    if len(numbers) < 2:
        return None
    hazard = next((h for a, b in pairwise(numbers) if (h := shop.hazard(a, b))), None)
    comp = None if hazard else concatenated([shop.made(n).comp for n in numbers])
    if comp is None:
        return hazard or Refusal(Reason.TEMPLATE, "their rows, depths or heads differ")
    kernel = shop.kernel(comp)
    if isinstance(kernel, Refusal):
        return kernel
    before = sum(map(shop.now_s, numbers))
    return Offer(tuple(numbers), comp, None, before, kernel.seconds, kernel.leeway)


def _offer(shop: Workshop, numbers: Sequence[NodeId]) -> Offer | None:
    comp = shop.made(numbers[0]).comp
    for one, other in pairwise(numbers):
        if shop.hazard(one, other):
            return None
        comp = merge(comp, shop.made(other).comp, Rules(frozenset(comp.writes), shop.shapes))
        if isinstance(comp, Refusal):
            return None
    kernel = shop.kernel(comp)
    if not isinstance(kernel, Kernel):
        return None
    before = sum(shop.now_s(n) for n in numbers)
    return Offer(tuple(numbers), comp, None, before, kernel.seconds, kernel.leeway)
