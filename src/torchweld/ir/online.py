"""Reductions that depend on reductions, done in few walks over their axes.

    r = max over l of x;  s = sum over l of exp(x - r) * h

looks like two walks over l. But when the maximum of what has been seen moves from r to r', what was
summed only has to be multiplied by exp(r - r'): exp(x - r') * h = exp(r - r') * exp(x - r) * h, and
multiplying distributes over the sum. So the pair (r, s) is a monoid (a semidirect product) with

    (r, s) + (r', s') = (m, exp(r - m) * s + exp(r' - m) * s'),   m = max(r, r')

and any tiling of l, in any order, gives the same result: the loop of flash attention (Milakov and
Gimelshein 2018, Dao et al. 2022), a split of the keys with a merge, logsumexp. `normalised` brings
a Comp into the form in which this is seen, `walks` finds it, `combine` merges two states. What is
not of this form is right in a walk of its own, after the walk that it depends on. `h` may be
anything that is free of r; a maximum of anything but x would leave exp(x - r) unbounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import zip_longest

import torch
from torch import Tensor

from torchweld.core import dtypes
from torchweld.ir.build import BodyBuilder
from torchweld.ir.expand import expanded
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Const,
    Instr,
    Op,
    Reduce,
    Value,
    needed,
    operands,
)
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands

Body = Sequence[Instr]


@dataclass(frozen=True, slots=True)
class Walk:
    """What is reduced in one walk over the axes: `reductions`, those that others depend on first.
    `rescaled`: pairs (s, r) of this walk. Where the running maximum r moves to r', the running sum
    s is multiplied by exp(r - r')."""

    reductions: tuple[Value, ...]
    rescaled: tuple[tuple[Value, Value], ...] = ()


def walks(comp: Comp, axes: Iterable[str]) -> tuple[Walk, ...]:
    """The fewest walks over `axes` that do all reductions over exactly these, in order; `comp` is
    `normalised`. In a walk, a value may depend on reductions of earlier walks as it likes, on one
    of the same walk as `rescaled` says."""
    found = _reductions(comp.body, axes)
    needs = _needs(comp.body, found)
    place: dict[Value, int] = {}
    rescaled: list[tuple[Value, Value]] = []
    for value in found:
        (arg, *_) = comp.body[value].args
        shift = _usable_shift(comp, value, needs)
        rest = needs[arg] - {shift}
        place[value] = 1 + max((place[r] for r in rest), default=-1)
        if shift is not None:
            place[value] = max(place[value], place[shift])
            rescaled += [(value, shift)] if place[value] == place[shift] else []
    return tuple(
        Walk(
            tuple(v for v in found if place[v] == n),
            tuple(p for p in rescaled if place[p[0]] == n),
        )
        for n in range(1 + max(place.values(), default=-1))
    )


def combine(
    comp: Comp, walk: Walk, one: Mapping[Value, Tensor], other: Mapping[Value, Tensor]
) -> dict[Value, Tensor]:
    """The state of `walk` over two sets of points, from its state over each: for each reduction its
    value. Raises KeyError for a monoid without a merge of plain numbers."""
    made: dict[Value, Tensor] = {}
    shifts = dict(walk.rescaled)
    for value in walk.reductions:
        a, b = one[value], other[value]
        if value in shifts:
            r = shifts[value]
            a, b = (s * rescale(old, made[r]) for s, old in ((a, one[r]), (b, other[r])))
        made[value] = _MERGES[comp.body[value].monoid](a, b)
    return made


def rescale(old: Tensor, new: Tensor) -> Tensor:
    """exp(old - new) for maxima, the new one not below the old. Where nothing has been seen (-inf),
    nothing was summed: no inf - inf."""
    nothing = torch.zeros_like(new)
    return torch.exp(old - torch.where(new == -math.inf, nothing, new))


_MERGES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "any": torch.logical_or,
    "all": torch.logical_and,
}


def finite_of(body: Body, value: Value) -> Value | None:
    """`x` where a value is where(x == -inf, 0, x)."""
    choice = body[value]
    if not isinstance(choice, Op) or choice.name != "where":
        return None
    test, zero, x = (body[v] for v in choice.args)
    same = isinstance(test, Op) and test.name == "eq" and test.args[0] == choice.args[2]
    lowest = body[test.args[1]] if same else None
    found = lowest == Const(-math.inf, x.dtype) and zero == Const(0.0, x.dtype)
    return choice.args[2] if found else None


# -- what a sum is multiplied by when a maximum moves --


def shift_of(body: Body, value: Value, over: frozenset[str]) -> Value | None:
    """The maximum r over the axes `over` that a value shrinks with as exp(-r), None if there is
    none: the value is exp(x - r) times what is free of r, at most _MOST_FACTORS operations on."""
    found: dict[Value, tuple[Value | None, int]] = {}  # r, and how far away the exponential is
    todo = [value]
    while todo:
        args = _proportional(body, todo[-1])
        missing = [v for v in args.values() if v not in found]
        if missing:
            todo += missing
            continue
        value = todo.pop()
        place = _only_place(body, body[value], args, found)
        if place is not None:
            r, far = found[args[place]]
            found[value] = (r, far + 1) if far < _MOST_FACTORS else (None, 0)
        elif _is_op(body, value, ("exp",), None):
            found[value] = _subtracted(body, body[value].args[0], over), 0
        else:
            found[value] = None, 0
    return found[value][0]


def _proportional(body: Body, value: Value) -> dict[int, Value]:
    """The arguments that a value is proportional to, if what they are made of allows it; by
    place."""
    instr = body[value]
    if isinstance(instr, Cast):
        wide = instr.dtype in (dtypes.f32, dtypes.f64) and body[instr.arg].dtype.is_float
        return {0: instr.arg} if wide else {}
    places = _LINEAR.get(instr.name, ()) if isinstance(instr, Op) else ()
    return {p: instr.args[p] for p in places}


def _only_place(body: Body, instr: Instr, args: Mapping[int, Value], found) -> int | None:
    """Which of `args` shrinks with a maximum; None if not exactly one does, or if the other side of
    a choice is not zero."""
    places = [p for p, v in args.items() if found[v][0] is not None]
    if len(places) != 1:
        return None
    if isinstance(instr, Op) and instr.name == "where":
        zero = body[instr.args[3 - places[0]]]
        return places[0] if isinstance(zero, Const) and zero.value == 0 else None
    return places[0]


def _subtracted(body: Body, value: Value, over: frozenset[str]) -> Value | None:
    """r where a value is x - r or x - where(r == -inf, 0, r), and r = max over `over` of x."""
    difference = body[value]
    if not isinstance(difference, Op) or difference.name != "sub":
        return None
    x, base = difference.args
    safe = finite_of(body, base)
    r = base if safe is None else safe
    top = body[r]
    known = isinstance(top, Reduce) and top.monoid == "max" and frozenset(top.axes) == over
    return r if known and top.args == (x,) else None


def _scaling_argument(body: Body, instr: Op, over: frozenset[str]) -> int | None:
    """Which argument of an operation the result is proportional to, and that shrinks with a
    maximum; None if there is not exactly one."""
    args = {p: instr.args[p] for p in _LINEAR.get(instr.name, ())}
    return _only_place(body, instr, args, {v: (shift_of(body, v, over), 0) for v in args.values()})


_MOST_FACTORS = 64  # of a product: more are no form that anything is known of
_LINEAR = {"mul": (0, 1), "div": (0,), "neg": (0,), "where": (1, 2)}


def _usable_shift(comp: Comp, value: Value, needs: Sequence[frozenset[Value]]) -> Value | None:
    """The maximum that a sum can be rescaled by: all else that is summed is free of it."""
    total = comp.body[value]
    if total.monoid != "sum":
        return None
    over = frozenset(total.axes)
    r = shift_of(comp.body, total.args[0], over)
    return r if r is not None and _free_of(comp.body, total.args[0], r, over, needs) else None


def _free_of(body: Body, value: Value, r: Value, over, needs: Sequence[frozenset[Value]]) -> bool:
    """Whether `r` appears on the way to exp(x - r) alone."""
    instr = body[value]
    if isinstance(instr, Cast):
        return _free_of(body, instr.arg, r, over, needs)
    if instr.name == "exp":
        return r not in needs[body[instr.args[0]].args[0]]
    place = _scaling_argument(body, instr, over)
    others = [v for k, v in enumerate(instr.args) if k != place]
    return all(r not in needs[v] for v in others) and _free_of(
        body, instr.args[place], r, over, needs
    )


def _reductions(body: Body, axes: Iterable[str]) -> tuple[Value, ...]:
    over = frozenset(axes)
    return tuple(
        v for v, i in enumerate(body) if isinstance(i, Reduce) and frozenset(i.axes) == over
    )


def _needs(body: Body, reductions: Iterable[Value]) -> list[frozenset[Value]]:
    """For each value, the `reductions` that it is made of, as far as the nearest: what one is made
    of itself is not said again."""
    own, found = set(reductions), []
    for instr in body:
        parts = operands(instr)
        found.append(frozenset().union(*({v} if v in own else found[v] for v in parts)))
    return found


# -- the form in which it is seen --


def normalised(comp: Comp, axes: Iterable[str]) -> Comp:
    """`comp` with the same results, in which sums over exactly `axes` are as plain as can be:

        logsumexp(x)             ->  max(x) and sum(exp(x - max))
        sum(e / t * v)           ->  sum(e * v) / t                 t constant along `axes`
        sum(where(c, 0, a) * v)  ->  where(c, 0, sum(a * v))        c constant along `axes`
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
    """The sums, by value, of a product with a sum or a difference in it."""
    found = []
    for value in _reductions(comp.body, over):
        instr = comp.body[value]
        if instr.monoid == "sum" and any(
            _is_op(comp.body, f, ("add", "sub")) for f in _factors(comp.body, instr.args[0])[0]
        ):
            found.append(value)
    return found


def _rewritten(comp: Comp, over: frozenset[str], split: frozenset[int]) -> Comp:
    to = _Writer(BodyBuilder(), over)
    at: list[Value] = []
    for value, instr in enumerate(comp.body):
        moved = with_operands(instr, at.__getitem__)
        is_sum = isinstance(moved, Reduce) and moved.monoid == "sum"
        plain = is_sum and frozenset(moved.axes) == over and moved.dtype in _WIDE
        at.append(to.summed(moved, value in split) if plain else to.other(moved))
    stores = tuple(move_store(s, at.__getitem__, {}) for s in comp.stores)
    return replace(comp, body=to.body.body, stores=stores)


_WIDE = (dtypes.f32, dtypes.f64)


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
        parts = next((f for f in above if split and _is_op(self.body, f, ("add", "sub"))), None)
        if parts is not None:
            return self._each(total, parts, above, below)
        inside = [f for f in above if self._varies(f)]
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
        if isinstance(instr, Op) and instr.name == "exp" and instr.dtype in _WIDE:
            return self._exponential(instr)
        if isinstance(instr, Reduce) and instr.monoid == "all":
            test = self.body[instr.args[0]]
            x = self.body[test.args[0]] if _is_op(self.body, instr.args[0], ("eq",), None) else None
            if x is not None and self.body[test.args[1]] == Const(-math.inf, x.dtype):
                top = self.body.reduce("max", test.args[:1], instr.axes)
                return self.body.op("eq", top, test.args[1])
        return self.body.emit(instr)

    def _exponential(self, instr: Op) -> Value:
        """exp(x - m) / t of exp(x - (log(t) + m)), exp(x - r) * exp(r - m) of a higher m"""
        below = self.body[instr.args[0]]
        if _is_op(self.body, instr.args[0], ("sub",)):
            x, total = below.args
            top = self._lowered(x, total)
            if top is not None:
                bases = ((x, self._finite(top)), (top, total))
                exps = (self.body.op("exp", self.body.op("sub", *pair)) for pair in bases)
                return self.body.op("mul", *exps)
            parts = self.body[total].args if _is_op(self.body, total, ("add",)) else ()
            logs = [p for p in parts if _is_op(self.body, p, ("log",)) and not self._varies(p)]
            if len(logs) == 1 and self._varies(x) and not self._varies(total):
                (base,) = (p for p in parts if p != logs[0])
                exp = self.body.op("exp", self.body.op("sub", x, base))
                return self.body.op("div", exp, self.body[logs[0]].args[0])
        return self.body.emit(instr)

    def _lowered(self, x: Value, base: Value) -> Value | None:
        """max(x), where `base` is the maximum of that and of what is constant along the axes."""
        if not _is_op(self.body, base, ("maximum",)) or self._varies(base):
            return None
        for part in self.body[base].args:
            instr = self.body[part]
            top = isinstance(instr, Reduce) and instr.monoid == "max" and instr.args == (x,)
            found = part if top and frozenset(instr.axes) == self.over else self._lowered(x, part)
            if found is not None:
                return found
        return None

    def _is_row_choice(self, value: Value) -> bool:
        """where(c, 0, a) with c constant along the axes."""
        if not _is_op(self.body, value, ("where",)):
            return False
        test, zero, a = self.body[value].args
        is_zero = isinstance(self.body[zero], Const) and self.body[zero].value == 0
        return is_zero and self._varies(a) and not self._varies(test)

    def _chosen(self, total: Reduce, choice: Value, above, below, split: bool) -> Value:
        """where(c, 0, sum(a * v)) of sum(where(c, 0, a) * v)"""
        test, zero, a = self.body[choice].args
        factors = _replaced(above, choice, a)
        inside = self.summed(replace(total, args=(self._product(factors, below),)), split)
        return self.body.op("where", test, zero, inside)

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
        place = _scaling_argument(self.body, instr, self.over)
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
        place = _scaling_argument(self.body, instr, self.over)
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
        if len(todo) + len(sides[0]) + len(sides[1]) > _MOST_FACTORS:
            return [value], []
        if _is_op(body, factor, ("mul", "div")):
            left, right = body[factor].args
            divides = body[factor].name == "div"
            todo += [(right, 1 - side if divides else side), (left, side)]
        else:
            sides[side].append(factor)
    return sides


def _is_op(body: Body, value: Value, names: tuple[str, ...], kinds=_WIDE) -> bool:
    instr = body[value]
    known = isinstance(instr, Op) and instr.name in names
    return known and (kinds is None or instr.dtype in kinds)
