"""Comparisons of a row with a key, as bounds on the key.

    le(l - i, 0)        l < i + 1
    lt(i - l, 1024)     l >= i - 1023
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Cast, Comp, Const, Index, Instr, Op, Value
from torchweld.templates.attention.gpu.schedule import NestSchedule
from torchweld.templates.attention.nest import Nest

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True, slots=True)
class Edge:
    """key < `at` (`high`), or key >= `at`; `key` is an axis."""

    key: str
    high: bool
    at: Affine


def implied(comp: Comp, nest: Nest, s: NestSchedule) -> dict[Value, bool]:
    """Comparisons that are the same, true or false, wherever the bound of `nest` holds."""
    bounds, found = {True: nest.bound.high, False: nest.bound.low}, {}
    for value in range(len(comp.body)):
        edge = edge_of(comp.body, value, nest.keys)
        here = edge is not None and s.keys == (edge.key,) == (nest.bound.axis,)
        if here and edge.at in bounds.values():  # what is not below is at least as much
            found[value] = bounds[edge.high] == edge.at
    return found


def edge_of(body: tuple[Instr, ...], value: Value, keys: tuple[str, ...]) -> Edge | None:
    """The bound on one of `keys` that a comparison of affine values is; None for anything else."""
    instr = body[value]
    if not isinstance(instr, Op) or instr.name not in _MIRRORED:
        return None
    left, right = (_affine(body, v) for v in instr.args)
    if left is None or right is None:
        return None
    difference = left + right * -1
    found = [k for k in keys if difference.coefficient(k) != 0]
    if len(found) != 1 or difference.coefficient(found[0]) not in (1, -1):
        return None
    (key,), name = found, instr.name
    rest = difference.substitute({key: affine.constant(0)})  # (key + rest) name 0
    if difference.coefficient(key) == -1:
        rest, name = rest * -1, _MIRRORED[name]
    strict = name in ("lt", "ge")  # key < -rest, key >= -rest; else one beyond
    return Edge(key, name in ("lt", "le"), rest * -1 + (0 if strict else 1))


def _affine(body: tuple[Instr, ...], value: Value) -> Affine | None:
    """The integer map that a value is."""
    instr = body[value]
    if isinstance(instr, Index):
        return instr.map
    if isinstance(instr, Const) and isinstance(instr.value, int):
        return affine.constant(int(instr.value))
    if isinstance(instr, Cast) and instr.dtype.is_integral and instr.dtype.bits >= 32:
        return _affine(body, instr.arg)
    if isinstance(instr, Op) and instr.name in ("add", "sub"):
        left, right = (_affine(body, v) for v in instr.args)
        if left is not None and right is not None:
            return left + (right if instr.name == "add" else right * -1)
    return None
