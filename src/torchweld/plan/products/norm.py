"""A norm computed by the products that read it, where there are few rows: its scale commutes with
the sum over the depth, so that the statistics are collected beside the products.

    comp h [m, k] { r = rsqrt(mean of x * x + eps); store h[m, k] round(x * r * w) }
    extern y = mm(h, b)
 -> comp y [m, n, k] { (sum over k of round(x * w) * b) * rsqrt(mean of x * x + eps) }

The row is rounded to 16 bits once, before it is scaled rather than after: the error is that of
eager (facts: 2.34e-3 and 2.35e-3 of a bfloat16 result). In float16 the unscaled row could overflow:
bfloat16 alone. A norm that subtracts its mean stays. Every tile computes the row for itself: the
products of 16 rows by [2048, 2048] take 8 us more so, where a norm takes 2.

Not where kernels begin early: a norm then takes less than a microsecond, and the weights behind it
are under way meanwhile (Llama-1B, 2 rows, on an H100: 1189 us apart, 1293 joined).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchweld.core import dtypes
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Instr,
    Load,
    Op,
    Reduce,
    Value,
    operands,
    value_axes,
)
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands
from torchweld.plan.flow import NodeId
from torchweld.plan.inline import Place, apart, copy_instr, copy_store
from torchweld.plan.products.kernel import MARGIN, Kernel, Offer, Workshop
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.unify import covered, solve

MOST_ROWS = 3


def join_norms(shop: Workshop) -> dict[tuple[str, str], Refusal]:
    """Moves norms into all of the products that read them, where that gains. Why one stays apart,
    by the names of itself and of a product."""
    refused: dict[tuple[str, str], Refusal] = {}
    for number in shop.flow.order():
        norm = shop.flow.nodes.get(number)
        found = _readers(shop, norm)
        if not found:
            continue
        names = [shop.flow.nodes[n].name for n in found]
        offers = _offers(shop, number, found)
        if isinstance(offers, Refusal):
            is_product = shop.made(number) is not None
            refused |= {} if is_product else {(norm.name, name): offers for name in names}
            continue
        for offer in offers:
            shop.take(offer, norm.name)
        shop.flow.remove(number)
    return refused


def _offers(
    shop: Workshop, number: NodeId, readers: Mapping[NodeId, Comp]
) -> list[Offer] | Refusal:
    """The kernels in the place of `readers`, each with the norm in it, if together they gain."""
    norm = shop.flow.nodes[number]
    kernels = {n: _kernel(shop, norm, comp) for n, comp in readers.items()}
    stuck = [k for k in kernels.values() if isinstance(k, Refusal)]
    stuck += [h for n in readers if (h := shop.hazard(number, n))]
    if stuck:
        return stuck[0]
    share_s = shop.prices.comp_s(norm) / len(readers)
    before = {n: shop.now_s(n) + share_s for n in readers}
    offers = [Offer((n,), k.comp, None, before[n], k.seconds) for n, k in kernels.items()]
    after_s = sum(o.after_s for o in offers)
    whole = Offer(tuple(readers), norm, None, sum(before.values()), after_s)
    return offers if whole.pays(MARGIN) else whole.refusal(MARGIN)


def may_join(shop: Workshop, norm: Comp, product: Kernel) -> bool:
    """Whether nothing but products would read the norm of what `product` makes."""
    return _has_few_rows(product) and bool(_readers(shop, norm))


def _has_few_rows(kernel: Kernel) -> bool:
    return isinstance(kernel.rows, int) and kernel.rows <= MOST_ROWS


def _readers(shop: Workshop, norm: Comp | None) -> dict[NodeId, Comp] | None:
    """The products that read what `norm` stores, as Comps, if nothing else does and it is a norm
    of plainly read rows, on a device where it may join them."""
    if shop.prices.device.begins_early:
        return None
    if not isinstance(norm, Comp) or len(norm.stores) != 1 or not _is_norm(norm):
        return None
    result = norm.stores[0].buffer
    numbers = dict.fromkeys(shop.flow.readers[result])
    if shop.flow.is_needed_after(result, *numbers):
        return None
    found = {n: _product(shop, n, result) for n in numbers}
    return found if found and None not in found.values() else None


def _is_norm(comp: Comp) -> bool:
    loads = [i for i in comp.body if isinstance(i, Load)]
    plain = all(isinstance(e, Affine) for i in loads for e in i.index)
    reduces = any(isinstance(i, Reduce) for i in comp.body)
    return plain and reduces and comp.stores[0].guard is None and not comp.stores[0].combine


def _product(shop: Workshop, number: NodeId, result: str) -> Comp | None:
    """The node as a Comp, if `result` is the left factor of all its products."""
    made = shop.made(number)
    return made.comp if made and made.left == {result} else None


def _kernel(shop: Workshop, norm: Comp, product: Comp) -> Kernel | Refusal:
    joined = join_norm(norm, product)
    if joined is None:
        return Refusal(Reason.TEMPLATE, f"{norm.name} does more than scale rows")
    kernel = shop.kernel(joined)
    if isinstance(kernel, Refusal) or _has_few_rows(kernel):
        return kernel
    return Refusal(Reason.SLOWER, f"each tile of {kernel.rows} rows would compute the norm again")


# -- one product with its norm --


def join_norm(norm: Comp, product: Comp) -> Comp | None:
    """`product` with the row that `norm` stores computed in it and its scale applied to the sums;
    None where the scale is no factor of the row, or rows and columns are not the product's."""
    store = norm.stores[0]
    loads = [i for i in product.body if isinstance(i, Load) and i.buffer == store.buffer]
    if len(loads) != 1 or loads[0].guard is not None or loads[0].dtype != dtypes.bf16:
        return None
    norm = apart(norm, product)
    images = _images(norm, norm.stores[0].index, loads[0], product)
    return images and _deferred(_inlined(norm, images, loads[0], product))


def _images(norm: Comp, stored, load: Load, product: Comp) -> dict[str, Affine] | None:
    """The norm's rows and columns in the product's axes; its columns are the product's depth."""
    inner, outer = norm.extents, product.extents
    images = solve(stored, load.index, inner, outer)
    if not isinstance(images, dict) or set(images) != set(inner):
        return None
    columns = {n for i in norm.body if isinstance(i, Reduce) for n in i.axes}
    depth = {n for i in product.body if isinstance(i, Reduce) for n in i.axes}
    along = covered({n: images[n] for n in columns}, inner, outer)
    rows = frozenset().union(*(i.axes for n, i in images.items() if n not in columns))
    return images if along == depth and not rows & depth else None


def _inlined(norm: Comp, images: Mapping[str, Affine], load: Load, product: Comp) -> Comp:
    extents = product.extents
    to, row, at = BodyBuilder(), [], []
    for instr in norm.body:
        row.append(copy_instr(to, instr, row, Place(images, extents)))
    for instr in product.body:
        if instr == load:
            at.append(row[norm.stores[0].value])
        else:
            at.append(copy_instr(to, instr, at, Place({}, extents)))
    stores = tuple(copy_store(to, s, at, Place({}, extents)) for s in product.stores)
    origins = tuple(dict.fromkeys(norm.origins + product.origins))
    return replace(product, body=to.body, stores=stores, origins=origins)


def _deferred(comp: Comp) -> Comp | None:
    """sum over k of round(a[m, k] * r[m]) * b[n, k]  ->  r[m] * sum over k of round(a[m, k]) * b"""
    to, at = BodyBuilder(), []
    follows, axes = _after_reductions(comp.body), value_axes(comp.body)
    for instr in comp.body:
        if isinstance(instr, Reduce) and follows[instr.args[0]]:
            at.append(_deferred_sum(to, comp.body, instr, at, follows, axes))
        else:
            at.append(to.emit(with_operands(instr, at.__getitem__)))
        if at[-1] is None:
            return None
    stores = tuple(move_store(s, at.__getitem__, {}) for s in comp.stores)
    return drop_dead(replace(comp, body=to.body, stores=stores))


def _after_reductions(body: tuple[Instr, ...]) -> list[bool]:
    """Which values follow from a reduction."""
    found: list[bool] = []
    for instr in body:
        found.append(isinstance(instr, Reduce) or any(found[v] for v in operands(instr)))
    return found


def _deferred_sum(to: BodyBuilder, body, total: Reduce, at, follows, axes) -> Value | None:
    """The sum of a product whose left factor follows from a reduction."""
    factor, depth = body[total.args[0]], set(total.axes)
    if not isinstance(factor, Op) or factor.name != "mul" or follows[factor.args[1]]:
        return None
    row = _factors(body, factor.args[0])
    scales = [v for v in row if not axes[v] & depth]
    rest = [v for v in row if axes[v] & depth]
    if not scales or not rest or any(follows[v] for v in rest):
        return None
    left = _rounded(to, _multiplied(to, [at[v] for v in rest]))
    value = to.reduce("sum", (to.op("mul", left, at[factor.args[1]]),), total.axes)
    return _multiplied(to, [value, *(at[v] for v in scales)])


def _factors(body: tuple[Instr, ...], value: Value) -> list[Value]:
    """What a float32 value is the product of, roundings to 16 bits between left out."""
    instr = body[value]
    if isinstance(instr, Op) and instr.name == "mul":
        return [v for a in instr.args for v in _factors(body, a)]
    if isinstance(instr, Cast) and isinstance(body[instr.arg], Cast):
        narrow = body[instr.arg]
        if narrow.dtype.is_low_precision and body[narrow.arg].dtype == instr.dtype:
            return _factors(body, narrow.arg)
    return [value]


def _multiplied(to: BodyBuilder, values: Sequence[Value]) -> Value:
    first, *others = values
    for other in others:
        first = to.op("mul", first, other)
    return first


def _rounded(to: BodyBuilder, value: Value) -> Value:
    """A factor as tensor cores take it: 16 bits, widened."""
    instr = to[value]
    if isinstance(instr, Cast) and to[instr.arg].dtype == dtypes.bf16:
        return value
    return to.cast(to.cast(value, dtypes.bf16), dtypes.f32)
