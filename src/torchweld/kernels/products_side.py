"""Products that share their left operand, rows, columns and depth side by side in one kernel (the
keys and values of an attention layer), with any number of columns where there are few rows
(`products_concat`), and products by themselves where a template of ours is faster than the library.

    extern k = mm(x, a);  extern v = mm(x, b)
 -> comp [m, n, k] { sum over k of x * a; sum over k of x * b; store k; store v }
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, pairwise

from torchweld.kernels.products_comp import is_product, left_operand
from torchweld.kernels.products_concat import concatenated
from torchweld.kernels.products_kernel import Kernel, Offer, Workshop
from torchweld.plan.flow import NodeId
from torchweld.plan.merge import Rules, merge
from torchweld.plan.refusals import Refusal

MARGIN = 0.1  # of the time before: no traffic goes, only launches and idle multiprocessors
_MOST_SIBLINGS = 3  # beside the first
_FARTHEST = 32  # nodes between siblings: what the first needs must not wait for long


def join_siblings(shop: Workshop) -> dict[tuple[str, str], Refusal]:
    """Puts products side by side, or in a kernel of their own, where that gains. Nothing that
    passes data on is refused."""
    for number in shop.flow.order():
        if number not in shop.flow.nodes or shop.made(number) is None:
            continue
        siblings = _siblings(shop, number)
        sets = chain.from_iterable(combinations(siblings, n) for n in range(len(siblings) + 1))
        offers = [_offer(shop, (number, *others)) for others in sets]
        offers.append(_concatenation(shop, number))
        pays = [o for o in offers if o and o.gain_s > MARGIN * o.before_s]
        if pays:
            shop.take(max(pays, key=lambda o: o.gain_s))
    return {}


def _siblings(shop: Workshop, number: NodeId) -> list[NodeId]:
    """The next products of the same operand and sizes that do not wait for `number`."""
    order = shop.flow.order()
    near = order[order.index(number) + 1 :][:_FARTHEST]
    own = shop.made(number)
    made = {n: shop.made(n) for n in near if own.left}
    alike = [n for n, k in made.items() if k and (k.left, k.sizes) == (own.left, own.sizes)]
    return _independent(shop, [number, *alike])[1:]


def _independent(shop: Workshop, numbers: Sequence[NodeId]) -> list[NodeId]:
    """The first of `numbers` that do not wait for each other."""
    found: list[NodeId] = []
    for number in numbers:
        if not any(shop.flow.is_before(n, number) for n in found):
            found.append(number)
    return found[: _MOST_SIBLINGS + 1]


def _concatenation(shop: Workshop, number: NodeId) -> Offer | None:
    """`number` and the next products of the same operand, of any number of columns, if there are
    few rows to stream their matrices by."""
    order, nodes = shop.flow.order(), shop.flow.nodes
    if not is_product(nodes[number]):
        return None
    near = order[order.index(number) : order.index(number) + _FARTHEST]
    left = left_operand(nodes[number])
    alike = [n for n in near if is_product(nodes[n]) and left_operand(nodes[n]) == left]
    numbers = _independent(shop, [n for n in alike if shop.made(n)])
    if len(numbers) < 2 or any(shop.hazard(a, b) for a, b in pairwise(numbers)):
        return None
    comp = concatenated([shop.made(n).comp for n in numbers])
    kernel = comp and shop.kernel(comp)
    if not isinstance(kernel, Kernel) or kernel.schedule.form != "stream":
        return None
    return Offer(tuple(numbers), comp, None, sum(map(shop.now_s, numbers)), kernel.seconds)


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
    return Offer(tuple(numbers), comp, None, before, kernel.seconds)
