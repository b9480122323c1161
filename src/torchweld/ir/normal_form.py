"""The form of a Comp in which sums over axes are as plain as can be, so that ir/online.py sees what
can be done in one walk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import zip_longest

from torchweld.ir.build import BodyBuilder
from torchweld.ir.expand import expanded
from torchweld.ir.nodes import Cast, Comp, Const, Instr, Op, Reduce, Value, needed, value_axes
from torchweld.ir.online import (
    MOST_FACTORS,
    WIDE,
    Body,
    finite_of,
    is_maximum,
    is_op,
    reductions_over,
    scaling_argument,
    shift_of,
    walks,
)
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands


def normalised(comp: Comp, axes: Iterable[str]) -> Comp:
    """`comp` with the same results, in which sums over exactly `axes` are as plain as can be:

        logsumexp(x)             ->  max(x) and sum(exp(x - max))
        sum(e / t * v)           ->  sum(e * v) / t    t constant along `axes`, and e no exponential
                                                       of any size: e * v may overflow
        sum(where(c, 0, e / t) * v)
                                 ->  sum(where(c, 0, e) * v) / where(c, 1, t)      c and t constant
        sum(where(c, 0, a) * v)  ->  where(c, 0, sum(a * v))       c made of reductions over `axes`
        sum((a - b) * v)         ->  sum(a * v) - sum(b * v)        where that saves a walk
        all(x == -inf)           ->  max(x) == -inf
        exp(x - (log(t) + m))    ->  exp(x - m) / t                 t and m constant along `axes`
        exp(x - maximum(r, c))   ->  exp(x - r) * exp(r - maximum(r, c))      r = max(x), c as t
        sum(exp(x - r) * h)      ->  where(r == -inf, nan, sum(exp(x - where(r == -inf, 0, r)) * h))
        sum(where(c, 0, exp(x - r)) * h)         the same, where some point has no c

    Factors keep their values but not the order in which they are multiplied: as any sum does, one
    of products may round in another way, and overflow in another place. A factor that alone varies
    along some axis, and is no reduction's result, comes last.
    """
    over = frozenset(axes)
    comp = drop_dead(_rewritten(expanded(comp), over, split=frozenset()))
    chosen: frozenset[int] = frozenset()
    for place in _splittable(comp, over):
        tried = _rewritten(comp, over, split=chosen | {place})
        if len(walks(tried, over)) < len(walks(_rewritten(comp, over, split=chosen), over)):
            chosen |= {place}
    return drop_dead(_rewritten(comp, over, split=chosen)) if chosen else comp


def _splittable(comp: Comp, over: frozenset[str]) -> list[int]:
    """The sums, by value, of a product with a sum or a difference in it, both of whose parts vary
    with what they are multiplied by: sums of a number of the row would be left. Not of a gradient,
    sum(w * (g - sum(w * g)) * v), whose two parts would be as large as g, and may cancel."""
    axes, found = value_axes(comp.body), []
    reductions = reductions_over(comp.body, over)
    totals = {v for v in reductions if comp.body[v].monoid == "sum"}
    for value in reductions:
        instr = comp.body[value]
        factors = _factors(comp.body, instr.args[0])[0] if instr.monoid == "sum" else []
        for sides in (f for f in factors if is_op(comp.body, f, ("add", "sub"))):
            weighted = any(axes[f] & over for f in factors if f != sides)
            parts = comp.body[sides].args
            above = [f for part in parts for f in _factors(comp.body, part)[0]]
            if totals & needed(comp.body, [f for f in above if not axes[f] & over]):
                continue
            if weighted or all(axes[part] & over for part in parts):
                found.append(value)
                break
    return found


def _rewritten(comp: Comp, over: frozenset[str], split: frozenset[int]) -> Comp:
    to = _Writer(BodyBuilder(), over)
    at: list[Value] = []
    for value, instr in enumerate(comp.body):
        moved = with_operands(instr, at.__getitem__)
        is_sum = isinstance(moved, Reduce) and moved.monoid == "sum"
        plain = is_sum and frozenset(moved.axes) == over and moved.dtype in WIDE
        at.append(to.summed(moved, value in split) if plain else to.other(moved))
    stores = tuple(move_store(s, at.__getitem__, {}) for s in comp.stores)
    return replace(comp, body=to.body.body, stores=stores)


@dataclass(slots=True)
class _Writer:
    """Writes sums over the axes `over`."""

    body: BodyBuilder
    over: frozenset[str]

    def summed(self, total: Reduce, split: bool) -> Value:
        """The value of a sum whose argument is in the body already."""
        above, below = _factors(self.body, total.args[0])
        choice = next((f for f in above if self._is_row_choice(f)), None)
        if choice is not None:
            return self._chosen(total, choice, above, below, split)
        parts = next((f for f in above if split and is_op(self.body, f, ("add", "sub"))), None)
        if parts is not None:
            return self._each(total, parts, above, below)
        inside = [f for f in above if self._varies(f)]
        free = next((f for f in above if self._is_free(f)), None)
        if free is not None:
            rest = [f for f in above if f != free]
            return self._sum(total, self._last([self._product([free], below), *rest], []))
        if not inside or (len(inside) == len(above) and all(map(self._varies, below))):
            return self._sum(total, total.args[0] if len(above) < 2 else self._last(above, below))
        result = self._sum(total, self._last(inside, [f for f in below if self._varies(f)]))
        return self._scaled(
            result, [f for f in above if not self._varies(f)],
            [f for f in below if not self._varies(f)],
        )  # fmt: skip

    def _scaled(self, total: Value, above: Sequence[Value], below: Sequence[Value]) -> Value:
        """`total` times `above`, divided by `below`: in turn, since a sum of exponentials has a
        square that overflows where it does not, and is divided by one as large."""
        for divisor, factor in zip_longest(below, above):
            total = total if divisor is None else self.body.op("div", total, divisor)
            total = total if factor is None else self.body.op("mul", total, factor)
        return total

    def other(self, instr: Instr) -> Value:
        """An instruction that is no sum."""
        if isinstance(instr, Op) and instr.name == "exp" and instr.dtype in WIDE:
            return self._exponential(instr)
        if isinstance(instr, Reduce) and instr.monoid == "all":
            test = self.body[instr.args[0]]
            x = self.body[test.args[0]] if is_op(self.body, instr.args[0], ("eq",), None) else None
            if x is not None and self.body[test.args[1]] == Const(-math.inf, x.dtype):
                top = self.body.reduce("max", test.args[:1], instr.axes)
                return self.body.op("eq", top, test.args[1])
        return self.body.emit(instr)

    def _exponential(self, instr: Op) -> Value:
        """exp(x - m) / t of exp(x - (log(t) + m)), exp(x - r) * exp(r - m) of a higher m"""
        if is_op(self.body, instr.args[0], ("sub",)):
            x, total = self.body[instr.args[0]].args
            if (top := self._lowered(x, total)) is not None:
                bases = ((x, self._finite(top)), (top, total))
                exps = (self.body.op("exp", self.body.op("sub", *pair)) for pair in bases)
                return self.body.op("mul", *exps)
            parts = self.body[total].args if is_op(self.body, total, ("add",)) else ()
            logs = [p for p in parts if is_op(self.body, p, ("log",)) and not self._varies(p)]
            if len(logs) == 1 and self._varies(x) and not self._varies(total):
                (base,) = (p for p in parts if p != logs[0])
                exp = self.body.op("exp", self.body.op("sub", x, base))
                return self.body.op("div", exp, self.body[logs[0]].args[0])
        return self.body.emit(instr)

    def _lowered(self, x: Value, base: Value) -> Value | None:
        """max(x), where `base` is the maximum of that and of what is constant along the axes."""
        if not is_op(self.body, base, ("maximum",)) or self._varies(base):
            return None
        found = (p if is_maximum(self.body[p], x, self.over) else self._lowered(x, p)
                 for p in self.body[base].args)  # fmt: skip
        return next((f for f in found if f is not None), None)

    def _is_row_choice(self, value: Value) -> bool:
        """where(c, 0, a) with c constant along the axes, as is a factor of a, or made of reductions
        over them."""
        if not is_op(self.body, value, ("where",)):
            return False
        test, zero, a = self.body[value].args
        is_zero = isinstance(self.body[zero], Const) and self.body[zero].value == 0
        if not is_zero or not self._varies(a) or self._varies(test):
            return False
        above, below = _factors(self.body, a)
        some = any(map(self._varies, above))
        return self._is_statistic(test) or (some and not all(map(self._varies, above + below)))

    def _chosen(self, total: Reduce, choice: Value, above, below, split: bool) -> Value:
        """sum(where(c, 0, a) * v) / where(c, 1, t) of sum(where(c, 0, a / t) * v), as zero times v
        may be NaN. where(c, 0, sum(a * v)) if c is known after a walk over the axes alone."""
        test, zero, a = self.body[choice].args
        if self._is_statistic(test):
            factors = _replaced(above, choice, a)
            inside = self.summed(replace(total, args=(self._product(factors, below),)), split)
            return self.body.op("where", test, zero, inside)
        one = self.body.const(1.0, total.dtype)
        sides = [([f for f in side if self._varies(f)],
                  [self.body.op("where", test, one, f) for f in side if not self._varies(f)])
                 for side in _factors(self.body, a)]  # fmt: skip
        (inside, outer), (under, divisors) = sides
        left = self.body.op("where", test, zero, self._product(inside, under))
        product = self._product([*_replaced(above, choice, left), *outer], [*below, *divisors])
        return self.summed(replace(total, args=(product,)), split)

    def _each(self, total: Reduce, parts: Value, above, below) -> Value:
        """sum(a * v) - sum(b * v) of sum((a - b) * v)"""
        sums = []
        for part in self.body[parts].args:
            factors = _replaced(above, parts, part)
            sums.append(self.summed(replace(total, args=(self._product(factors, below),)), False))
        return self.body.op(self.body[parts].name, *sums)

    def _varies(self, value: Value) -> bool:
        return bool(self.body.axes(value) & self.over)

    def _last(self, above: Sequence[Value], below: Sequence[Value]) -> Value:
        """The product of factors, last one that alone varies along some axis and is no reduction's
        result."""
        for place, factor in enumerate(above):
            rest = [f for k, f in enumerate(above) if k != place]
            others = frozenset().union(*(self.body.axes(f) for f in (*rest, *below)))
            own = self.body.axes(factor) - others
            if len(above) > 1 and own and not self._is_reduced(factor):
                return self.body.op("mul", self._product(rest, below), factor)
        return self._product(above, below)

    def _is_free(self, value: Value) -> bool:
        """Whether an exponential is of any size: of nothing that is less a number of its row. A
        share of their sum is at most one, a product with something else may overflow."""
        instr = self.body[value]
        if isinstance(instr, Cast):
            return self._is_free(instr.arg)
        if is_op(self.body, value, ("where",)):
            return any(map(self._is_free, instr.args[1:]))
        if not isinstance(instr, Op) or instr.name != "exp" or not self._varies(value):
            return False
        if not is_op(self.body, instr.args[0], ("sub",)):
            return True
        x, base = map(self.body.axes, self.body[instr.args[0]].args)
        return not base < x

    def _is_statistic(self, value: Value) -> bool:
        """Whether it is made of reductions over the axes."""
        behind = (self.body[v] for v in needed(self.body.body, [value]))
        return any(isinstance(i, Reduce) and frozenset(i.axes) == self.over for i in behind)

    def _is_reduced(self, value: Value) -> bool:
        behind = needed(self.body.body, [value])
        return any(isinstance(self.body[v], Reduce) for v in behind)

    def _product(self, above: Sequence[Value], below: Sequence[Value]) -> Value:
        result = reduce(lambda a, b: self.body.op("mul", a, b), above)
        return reduce(lambda a, b: self.body.op("div", a, b), below, result)

    def _sum(self, total: Reduce, arg: Value) -> Value:
        """The sum of `arg`; where no point counts, that of exp(-inf - -inf) is NaN."""
        r = shift_of(self.body, arg, self.over)
        guarded = arg if r is None else self._guarded(arg, r)
        result = self.body.emit(replace(total, args=(guarded,)))
        if guarded == arg:
            return result
        nan, is_nan = self.body.const(math.nan, total.dtype), self._is_lowest(r)
        taken = self._taken(arg)
        if taken is not None:
            count = taken
            if self._varies(taken):
                count = self.body.emit(replace(total, args=(taken,)))
            some = self.body.op("gt", count, self.body.const(0.0, total.dtype))
            is_nan = self.body.op("bit_and", is_nan, some)
        return self.body.op("where", is_nan, nan, result)

    def _taken(self, value: Value) -> Value | None:
        """1 where a choice on the way to exp(x - r) takes it, 0 where it takes a zero; None where
        there is no choice."""
        instr = self.body[value]
        if isinstance(instr, Cast):
            return self._taken(instr.arg)
        if instr.name == "exp":
            return None
        place = scaling_argument(self.body, instr, self.over)
        inner = self._taken(instr.args[place])
        if instr.name != "where":
            return inner
        one, zero = (self.body.const(n, instr.dtype) for n in (1.0, 0.0))
        args = [instr.args[0], zero, zero]
        args[place] = one if inner is None else inner
        return self.body.op("where", *args)

    def _guarded(self, value: Value, r: Value) -> Value:
        """`value` with exp(x - r) as exp(x - where(r == -inf, 0, r))."""
        instr = self.body[value]
        if isinstance(instr, Cast):
            return self.body.emit(replace(instr, arg=self._guarded(instr.arg, r)))
        if instr.name == "exp":
            x, base = self.body[instr.args[0]].args
            return self.body.op("exp", self.body.op("sub", x, self._finite(base)))
        place = scaling_argument(self.body, instr, self.over)
        args = [self._guarded(v, r) if k == place else v for k, v in enumerate(instr.args)]
        return self.body.op(instr.name, *args)

    def _finite(self, r: Value) -> Value:
        if finite_of(self.body, r) is not None:
            return r
        return self.body.op(
            "where", self._is_lowest(r), self.body.const(0.0, self.body[r].dtype), r
        )

    def _is_lowest(self, r: Value) -> Value:
        lowest = self.body.const(-math.inf, self.body[r].dtype)
        return self.body.op("eq", r, lowest)


def _replaced(factors: Sequence[Value], old: Value, new: Value) -> list[Value]:
    """`factors` with `new` for the first `old`: a square has it twice."""
    place = factors.index(old)
    return [*factors[:place], new, *factors[place + 1 :]]


def _factors(body: Body, value: Value) -> tuple[list[Value], list[Value]]:
    """What a value is the product of, and what of that it is divided by."""
    sides: tuple[list[Value], list[Value]] = [], []
    todo = [(value, 0)]
    while todo:
        factor, side = todo.pop()
        if len(todo) + len(sides[0]) + len(sides[1]) > MOST_FACTORS:
            return [value], []
        if is_op(body, factor, ("mul", "div")):
            left, right = body[factor].args
            divides = body[factor].name == "div"
            todo += [(right, 1 - side if divides else side), (left, side)]
        else:
            sides[side].append(factor)
    return sides
