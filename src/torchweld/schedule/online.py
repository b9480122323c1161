"""max(x) and sum(exp(x - max(x))): pairs that one pass can do, the sum rescaled whenever the
maximum rises; and how many passes over a row what is computed of it needs."""

from __future__ import annotations

from collections.abc import Collection

from torchweld.core import dtypes
from torchweld.ir.nodes import Instr, Op, Reduce, Value, operands

Body = tuple[Instr, ...]


def maximum_of(body: Body, total: Reduce) -> Value | None:
    """The value max(x) if `total` is sum(exp(x - max(x)))."""
    exp = body[total.args[0]]
    difference = body[exp.args[0]] if isinstance(exp, Op) and exp.name == "exp" else None
    if not isinstance(difference, Op) or difference.name != "sub":
        return None
    arg, top = difference.args
    wanted = Reduce("max", (arg,), total.axes, body[arg].dtype)
    return top if body[top] == wanted and wanted.dtype in (dtypes.f32, dtypes.f64) else None


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
