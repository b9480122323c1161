"""Passes over a row that are needed for what is computed of it, and whether programs may share it.

max(x) and sum(exp(x - max(x))) are pairs that one pass can do, the sum rescaled whenever the
maximum rises. A GPU's kernels are made so, and priced so."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.ir.frame import Frame
from torchweld.ir.nodes import (
    Comp,
    Const,
    Instr,
    Load,
    Op,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
    operands,
    store_axes,
    store_operands,
    value_axes,
)

Body = tuple[Instr, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """Over the columns: the reductions that it does, of a pair the maximum alone, and the places of
    the stores that it makes along them."""

    reductions: tuple[Value, ...]
    stores: tuple[int, ...]


def maximum_of(body: Body, total: Reduce) -> Value | None:
    """The value max(x) if `total` is sum(exp(x - max(x))); or, as in logsumexp, with zero in place
    of an infinite maximum."""
    exp = body[total.args[0]]
    difference = body[exp.args[0]] if isinstance(exp, Op) and exp.name == "exp" else None
    if not isinstance(difference, Op) or difference.name != "sub":
        return None
    arg, shift = difference.args
    top = _finite_of(body, shift)
    wanted = Reduce("max", (arg,), total.axes, body[arg].dtype)
    return top if body[top] == wanted and wanted.dtype in (dtypes.f32, dtypes.f64) else None


def keeps_infinity(body: Body, total: Value) -> bool:
    """Whether the sum of exponentials `total` is inf where the maximum is, and zero where all are
    -inf, not NaN."""
    shift = body[body[body[total].args[0]].args[0]].args[1]
    return _finite_of(body, shift) != shift


def _finite_of(body: Body, shift: Value) -> Value:
    """m where `shift` is where(abs(m) == inf, 0, m); else itself."""
    choice = body[shift]
    if not isinstance(choice, Op) or choice.name != "where":
        return shift
    infinite, zero = (body[v] for v in choice.args[:2])
    if not isinstance(infinite, Op) or infinite.name != "eq" or not isinstance(zero, Const):
        return shift
    size, limit = (body[v] for v in infinite.args)
    of_top = isinstance(size, Op) and size.name == "abs" and size.args == choice.args[2:]
    known = isinstance(limit, Const) and limit.value == math.inf and zero.value == 0
    return choice.args[2] if of_top and known else shift


def online(body: Body) -> dict[Value, Value]:
    """sum -> maximum, each maximum with one sum."""
    found: dict[Value, Value] = {}
    for value, instr in enumerate(body):
        if isinstance(instr, Reduce) and instr.monoid == "sum":
            top = maximum_of(body, instr)
            if top is not None and top not in found.values():
                found[value] = top
    return found


def stages(body: Body, over_rows: Collection[Value] = ()) -> list[int]:
    """For each value, how many passes over the columns it needs before it is known. `over_rows`:
    reductions that are no such passes."""
    pairs, found = online(body), []
    for value, instr in enumerate(body):
        if value in pairs:
            found.append(found[pairs[value]])
            continue
        stage = max((found[v] for v in operands(instr)), default=0)
        found.append(stage + (isinstance(instr, Reduce) and value not in over_rows))
    return found


def passes(comp: Comp, frame: Frame) -> tuple[Pass, ...]:
    """The passes over the columns of `frame`, in order: none waits for itself."""
    at, pairs = stages(comp.body, frame.column_reductions), online(comp.body)
    across = _stores_along(comp, frame.columns)
    reductions = [
        v for v, i in enumerate(comp.body)
        if isinstance(i, Reduce) and v not in pairs and v not in frame.column_reductions
    ]  # fmt: skip
    found = (
        Pass(
            tuple(v for v in reductions if at[v] == stage + 1),
            tuple(p for p in across if _store_stage(comp, p, at) == stage),
        )
        for stage in range(max(at, default=0) + 1)
    )
    return tuple(p for p in found if p.reductions or p.stores)


def can_share_rows(comp: Comp, frame: Frame) -> bool:
    """Whether several programs may share the columns of a row: reductions do not depend on each
    other. What else is stored lies along the columns, so that each point belongs to one share, or
    along the rows alone: a second kernel has these, which computes no places."""
    at, along = stages(comp.body, frame.column_reductions), _stores_along(comp, frame.columns)
    return (
        max(at, default=0) == 1
        and all(_store_stage(comp, p, at) == 0 for p in along)
        and not any(isinstance(i, Scan) for i in comp.body)
        and not any(s.combine for s in comp.stores)
        and not _computes_places(comp, [s for p, s in enumerate(comp.stores) if p not in along])
    )


def _computes_places(comp: Comp, stores: Collection[Store]) -> bool:
    """Whether what is done for them behind reductions reads or writes at computed places."""
    seen: set[Value] = set()
    todo, indices = [v for s in stores for v in store_operands(s)], [s.index for s in stores]
    while todo:
        value = todo.pop()
        if value in seen or isinstance(comp.body[value], Reduce):
            continue
        seen.add(value)
        todo += operands(comp.body[value])
        if isinstance(comp.body[value], Load):
            indices.append(comp.body[value].index)
    return any(isinstance(entry, Ref) for index in indices for entry in index)


def _stores_along(comp: Comp, columns: Collection[str]) -> list[int]:
    """Their places."""
    axes = value_axes(comp.body)
    along = (store_axes(comp, s, axes).intersection(columns) for s in comp.stores)
    return [place for place, found in enumerate(along) if found]


def _store_stage(comp: Comp, place: int, at: list[int]) -> int:
    return max(at[v] for v in store_operands(comp.stores[place]))
