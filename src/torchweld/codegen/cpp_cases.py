"""Conditions that do not change along the lane, decided before it.

    for i: v = in_x ? x[..i] : 0;  w = in_z ? z[..i] : 0;  y[..i] = in_x ? v : w
    ->  if (in_x) for i: y[..i] = x[..i];   else for i: ...

What concatenates images, or reads them beside their edges, asks where it is in rows and channels,
not in the lane. gcc takes guarded loads one by one unless it knows the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchweld.codegen.cpp_kernel import Kernel
from torchweld.core import dtypes
from torchweld.ir.nodes import Load, Op, Value, needed, operands

MOST = 4  # each case is another copy of the loop
_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_LOGIC: Mapping[str, Callable[..., bool]] = {
    "bit_and": lambda a, b: a and b,
    "bit_or": lambda a, b: a or b,
    "logical_not": lambda a: not a,
}


@dataclass(frozen=True, slots=True)
class Case:
    """`asked`: what a few conditions are here; `known`: what all are that follow from them."""

    asked: dict[Value, bool]
    known: dict[Value, bool]


def cases(k: Kernel, values: tuple[Value, ...]) -> tuple[Case, ...]:
    """Copies of the loop that computes `values`; none if no load in it has such a guard, or too
    many."""
    lane = k.schedule.nest[-1]
    guards = {
        i.guard for v in values if isinstance(i := k.body[v], Load) and i.guard is not None
    }
    if not any(lane not in k.stages.axes[g] for g in guards):
        return ()
    wanted = {u for v in values for u in operands(k.body[v]) if _is_fixed(k, u, lane)}
    order = [v for v in sorted(needed(k.body, wanted)) if _is_fixed(k, v, lane)]
    asked = [v for v in order if _derived(k, v, order) is None]
    if 2 ** len(asked) > MOST:
        return ()
    return tuple(
        _case(k, dict(zip(asked, answer)), order)
        for answer in itertools.product((True, False), repeat=len(asked))
    )


def _is_fixed(k: Kernel, value: Value, lane: str) -> bool:
    return k.body[value].dtype == dtypes.b1 and lane not in k.stages.axes[value]


def _case(k: Kernel, answers: dict[Value, bool], order: list[Value]) -> Case:
    known = dict(answers)
    for value in order:
        if value not in known:
            rule, args = _derived(k, value, order)
            known[value] = rule(*(known[a] for a in args))
    return Case(answers, known)


def _derived(k: Kernel, value: Value, order: list[Value]):
    """How a condition follows from earlier ones in `order`: (rule, them), or None."""
    instr = k.body[value]
    if not isinstance(instr, Op):
        return None
    if instr.name in _LOGIC and set(instr.args) <= set(order):
        return _LOGIC[instr.name], instr.args
    for other in itertools.takewhile(lambda v: v < value, order):
        same = isinstance(k.body[other], Op) and k.body[other].args == instr.args
        if same and _OPPOSITE.get(instr.name) == k.body[other].name:
            return _LOGIC["logical_not"], (other,)
    return None
