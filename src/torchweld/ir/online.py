"""Reductions that depend on reductions, done in few walks over their axes.

    r = max over l of x;  s = sum over l of exp(x - r) * h

looks like two walks over l. But when the maximum of what has been seen moves from r to r', what was
summed only has to be multiplied by exp(r - r'): exp(x - r') * h = exp(r - r') * exp(x - r) * h, and
multiplying distributes over the sum. So the pair (r, s) is a monoid (a semidirect product) with

    (r, s) + (r', s') = (m, exp(r - m) * s + exp(r' - m) * s'),   m = max(r, r')

and any tiling of l, in any order, gives the same result: the loop of flash attention (Milakov and
Gimelshein 2018, Dao et al. 2022), a split of the keys with a merge, logsumexp. `normalised`
(ir/normal_form.py) brings a Comp into the form in which this is seen, `walks` finds it, `combine`
merges two states. What is not of this form is right in a walk of its own, after the walk that it
depends on. `h` may be anything that is free of r; a maximum of anything but x would leave
exp(x - r) unbounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchweld.core import dtypes
from torchweld.ir.nodes import Cast, Comp, Const, Instr, Op, Reduce, Value, operands

Body = Sequence[Instr]
WIDE = (dtypes.f32, dtypes.f64)


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
    found = reductions_over(comp.body, axes)
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
    none: the value is exp(x - r) times what is free of r, at most MOST_FACTORS operations on."""
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
            found[value] = (r, far + 1) if far < MOST_FACTORS else (None, 0)
        elif is_op(body, value, ("exp",), None):
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
    return r if is_maximum(body[r], x, over) else None


def is_maximum(top: Instr, x: Value, over: frozenset[str]) -> bool:
    known = isinstance(top, Reduce) and top.monoid == "max" and frozenset(top.axes) == over
    return known and top.args == (x,)


def scaling_argument(body: Body, instr: Op, over: frozenset[str]) -> int | None:
    """Which argument of an operation the result is proportional to, and that shrinks with a
    maximum; None if there is not exactly one."""
    args = {p: instr.args[p] for p in _LINEAR.get(instr.name, ())}
    return _only_place(body, instr, args, {v: (shift_of(body, v, over), 0) for v in args.values()})


MOST_FACTORS = 64  # of a product: more are no form that anything is known of
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
    place = scaling_argument(body, instr, over)
    others = [v for k, v in enumerate(instr.args) if k != place]
    return all(r not in needs[v] for v in others) and _free_of(
        body, instr.args[place], r, over, needs
    )


def reductions_over(body: Body, axes: Iterable[str]) -> tuple[Value, ...]:
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


def is_op(body: Body, value: Value, names: tuple[str, ...], kinds=WIDE) -> bool:
    instr = body[value]
    known = isinstance(instr, Op) and instr.name in names
    return known and (kinds is None or instr.dtype in kinds)
