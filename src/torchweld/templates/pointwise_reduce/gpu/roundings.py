"""What a kernel's arithmetic may and may not round in its own way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from torchweld.ir.nodes import Cast, Const, Instr, Op, Pick, Reduce, Value, operands
from torchweld.ir.passes import maximum_of


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
    return frozenset(
        v for v in summed
        if reads[v] > 1 and _is(body[v], "mul")
        and body[v].dtype.is_float and not any(_is_power_of_two(body[a]) for a in body[v].args)
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
