"""How many passes over a row are needed for what is computed of it.

max(x) and sum(exp(x - max(x))) are pairs that one pass can do, the sum rescaled whenever the
maximum rises."""

from __future__ import annotations

import math
from collections.abc import Collection

from torchweld.core import dtypes
from torchweld.ir.nodes import Const, Instr, Op, Reduce, Value, operands

Body = tuple[Instr, ...]


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
