"""What a kernel's arithmetic may and may not round in its own way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from torchweld.codegen.triton.scalars import FAST, NEAR_ONE
from torchweld.ir.monoid import TABLE as MONOIDS
from torchweld.ir.nodes import Cast, Const, Instr, Op, Pick, Reduce, Scan, Value, needed, operands
from torchweld.ir.passes import maximum_of
from torchweld.ir.scalar import BITS, COMPARISONS, TABLE

_COARSE = (*FAST, *NEAR_ONE, "pow")  # where all results have 16 bits


def rounded_products(
    body: tuple[Instr, ...], stored: Collection[Value], coarse: bool
) -> frozenset[Value]:
    """Products of floats that the compiler must not make one operation with a sum. `coarse`: what
    is stored has 16 bits, beside which the rounding of a product in 32 is nothing."""
    differences = frozenset() if coarse else products_in_differences(body)
    before_steps = products_before_steps(body, stored)
    return shared_products(body, stored) | before_steps | differences | narrowed_products(body)


def narrowed_products(body: tuple[Instr, ...]) -> frozenset[Value]:
    """Products that are rounded to 16 bits and then added to something, whatever the kernel
    stores. LLVM multiplies numbers of 16 bits in 16 bits where the product is rounded to them at
    once, which is exact, adds likewise, and makes one operation of the two, which is not. Of two
    readers of the sum it may do so for one."""
    summed = {v for instr in body if _is(instr, "add", "sub") for v in instr.args}
    narrow = {v for v in _kept_from(body, summed) if _narrows(body, v)}
    return frozenset(v for v in _kept_from(body, narrow) if _rounds(body, v))


def _kept_from(body: tuple[Instr, ...], values: Collection[Value]) -> set[Value]:
    """`values`, and those whose bits they have but for sign and type."""
    return needed(body, values, stop={v for v, i in enumerate(body) if not _keeps(body, i)})


def _narrows(body: tuple[Instr, ...], value: Value) -> bool:
    instr = body[value]
    return isinstance(instr, Cast) and instr.dtype.is_float and instr.dtype.bits == 16


def _keeps(body: tuple[Instr, ...], instr: Instr) -> bool:
    """Whether its result is one of its operands, but for sign and type."""
    return isinstance(instr, (Cast, Pick)) or _is(
        instr, "where", "neg", "abs", "maximum", "minimum"
    )


def products_in_differences(body: tuple[Instr, ...]) -> frozenset[Value]:
    """Both sides of a difference may be equal: the mean of a square and the square of a mean, the
    products of a cross product or a determinant. Eager has rounded both, and gets zero; with one
    of them exact, the rounding of the other is left."""
    negative = {v for v, instr in enumerate(body) if _is_negative(body, instr)}

    def taken_away(value: Value) -> bool:
        return value in negative or any(v in negative for v in operands(body[value]))

    return frozenset(
        v for instr in body
        if _is(instr, "sub") or (_is(instr, "add") and any(map(taken_away, instr.args)))
        for v in instr.args if _rounds(body, v)
    )  # fmt: skip


def _is_negative(body: tuple[Instr, ...], instr: Instr) -> bool:
    return _is(instr, "neg") or (isinstance(instr, Const) and instr.value < 0)


def products_before_steps(
    body: tuple[Instr, ...], stored: Collection[Value]
) -> frozenset[Value]:
    """Products in sums from which a step is taken: an integer of a float, a comparison, or an
    extreme that is stored or compared. Eager rounds the product. Where the last bit decides the
    step, a fused multiplication and addition would give the next integer (quantised values), or the
    other truth: another kernel may compute the elements again and look for the extreme among
    them. The maximum that a softmax takes away is nobody else's."""
    steps = [i for i in body if _is_step(body, i)] + _told_extremes(body, stored)
    return products_in_sums(body, {v for instr in steps for v in operands(instr)})


def _told_extremes(body: tuple[Instr, ...], stored: Collection[Value]) -> list[Instr]:
    """Those that are stored or compared as they are, or as one of several."""
    told, found = {*stored, *compared_values(body)}, []
    for number in reversed(range(len(body))):
        instr = body[number]
        extreme = isinstance(instr, (Reduce, Scan)) and MONOIDS[instr.monoid].exact
        if number in told and (extreme or _keeps(body, instr)):
            told.update(operands(instr))
            found += [instr] if extreme and instr.dtype.is_float else []
    return found


def products_in_sums(body: tuple[Instr, ...], values: Collection[Value]) -> frozenset[Value]:
    """Of `values`, and of what they are computed from point by point."""
    behind = (body[v] for v in _computed_from(body, values))
    summed = {v for instr in behind if _is(instr, "add", "sub") for v in instr.args}
    return frozenset(v for v in summed if _rounds(body, v))


def may_differ(body: tuple[Instr, ...], values: Collection[Value]) -> bool:
    """Whether two kernels may compute other bits of the same values: by products in sums, or
    coarser functions."""
    return bool(products_in_sums(body, values)) or are_coarse(body, values)


def are_coarse(body: tuple[Instr, ...], values: Collection[Value]) -> bool:
    """Whether kernels whose results have 16 bits compute them by functions of their own."""
    behind = (body[v] for v in _computed_from(body, values))
    return any(_is(instr, *_COARSE) for instr in behind)


def _computed_from(body: tuple[Instr, ...], values: Collection[Value]) -> set[Value]:
    """`values`, and what they are computed from point by point."""
    whole = {v for v, i in enumerate(body) if not isinstance(i, (Op, Cast))}
    return needed(body, values, stop=whole)


def compared_values(body: tuple[Instr, ...]) -> set[Value]:
    """What has to have the same bits wherever it is computed: two results that are compared (no
    constants, nor something with itself, which asks whether it is NaN), what is marked, and what is
    ordered by its bits."""
    found = set()
    for instr in body:
        if isinstance(instr, Op) and instr.name in BITS:
            found |= {v for v in instr.args if body[v].dtype.is_float}
        elif isinstance(instr, Op) and instr.name in COMPARISONS:
            results = {v for v in instr.args if body[v].dtype.is_float}
            varying = sum(not isinstance(body[v], Const) for v in results) > 1
            found |= results if varying else set()
        elif _is_mark(body, instr):
            found.add(instr.arg)
    return found


def _is_mark(body: tuple[Instr, ...], instr: Instr) -> bool:
    """Of passes/compared.py."""
    return isinstance(instr, Cast) and instr.must_round and instr.dtype == body[instr.arg].dtype


def _is_step(body: tuple[Instr, ...], instr: Instr) -> bool:
    if isinstance(instr, Cast):
        to_integer = body[instr.arg].dtype.is_float and not instr.dtype.is_float
        return to_integer or _is_mark(body, instr)
    if not isinstance(instr, Op) or not any(body[a].dtype.is_float for a in instr.args):
        return False
    return TABLE[instr.name].exact or not instr.dtype.is_float


def shared_products(body: tuple[Instr, ...], stored: Collection[Value]) -> frozenset[Value]:
    """Products of floats that are read more than once (in `stored`, too), by a sum or a difference
    among others. A compiler may make a * b + c one operation, without rounding a * b: then this
    reader would see another product than the others, and `p - p` or `round(p) - p` be what the
    rounding left. So such products are rounded, once for all. Who reads the choice of a product
    reads the product: compilers multiply what was chosen."""
    reads, summed = Counter(stored), set[Value]()
    for number in reversed(range(len(body))):
        instr = body[number]
        chosen = instr.args[1:] if _is(instr, "where") else ()
        for value in operands(instr):
            reads[value] += reads[number] if value in chosen else 1
        if _is(instr, "add", "sub"):
            summed.update(instr.args)
        elif number in summed:
            summed.update(chosen)
    return frozenset(v for v in summed if reads[v] > 1 and _rounds(body, v))


def _rounds(body: tuple[Instr, ...], value: Value) -> bool:
    """Whether it is a product of floats, and not exact."""
    instr = body[value]
    return (
        _is(instr, "mul") and instr.dtype.is_float
        and not any(_is_power_of_two(body[a]) for a in instr.args)
    )  # fmt: skip


def _is(instr: Instr, *names: str) -> bool:
    return isinstance(instr, Op) and instr.name in names


def _is_power_of_two(instr: Instr) -> bool:
    """Products by it are exact."""
    return isinstance(instr, Const) and abs(math.frexp(instr.value)[0]) == 0.5


def divides_a_reduction(body: tuple[Instr, ...], instr: Op) -> bool:
    """A mean, say: one division for a whole row. What is a row's value everywhere has to have it as
    its mean, since differences from it are taken: of a constant row the deviation is zero."""
    if instr.name != "div" or not instr.dtype.is_float:
        return False
    above = body[instr.args[0]]
    while isinstance(above, Cast):
        above = body[above.arg]
    return isinstance(above, (Reduce, Pick))


def values_added_to_one(body: tuple[Instr, ...]) -> frozenset[Value]:
    """Those that are used, perhaps squared, in sums with a constant of at least one and nowhere
    else: errors far below the last place of one do not show."""
    ones = {v for v, i in enumerate(body) if isinstance(i, Const) and abs(i.value) >= 1}
    uses: dict[Value, list[Value]] = {}
    for number, instr in enumerate(body):
        for value in operands(instr):
            uses.setdefault(value, []).append(number)
    near: set[Value] = set()

    def is_hidden(number: Value) -> bool:
        instr = body[number]
        if not isinstance(instr, Op):
            return False
        square = instr.name == "mul" and len(set(instr.args)) == 1
        summed = instr.name in ("add", "sub") and not ones.isdisjoint(instr.args)
        return summed or (square and number in near)

    for value in sorted(uses, reverse=True):
        if all(map(is_hidden, uses[value])):
            near.add(value)
    return frozenset(near)


def sums_exponentials(body: tuple[Instr, ...], value: Value) -> bool:
    """Whether `value` is sum(exp(x - max(x))): at least one, or NaN."""
    instr = body[value]
    return (
        isinstance(instr, Reduce) and instr.monoid == "sum" and maximum_of(body, instr) is not None
    )
