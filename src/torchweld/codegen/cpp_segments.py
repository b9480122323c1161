"""A lane cut where comparisons of its position change: what `cat`, `pad` and rotary embeddings ask.

    for i in 0..800: v = i < 500 ? p[i] : q[i - 500]
    ->  for i in 0..500: v = p[i];   for i in 500..800: v = q[i - 500]

Within a segment the comparisons are constants, and the guards of loads fall away.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass

from torchweld.codegen.cpp_kernel import LANES, Kernel
from torchweld.ir.nodes import Const, Index, Op, Value

MOST = 4  # each segment is another copy of the loop
_COMPARE = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions low to high - 1, in which each of `known` is a constant."""

    low: int
    high: int
    known: dict[Value, bool]


def segments(k: Kernel, values: tuple[Value, ...]) -> tuple[Segment, ...]:
    """The lane in pieces; none if nothing is gained. `values`: what the loop computes."""
    lane = k.schedule.nest[-1]
    extent = k.comp.extent(lane)
    tests = {v: t for v in values if (t := _test(k, v, lane)) is not None}
    if not tests or not isinstance(extent, int):
        return ()
    changes = {_change(name, limit) for name, limit in tests.values()}
    cuts = [0, *sorted(c for c in changes if 0 < c < extent), extent]
    pieces = list(itertools.pairwise(cuts))
    if len(pieces) > MOST or any(high - low < LANES for low, high in pieces):
        return ()
    return tuple(
        Segment(low, high, {v: _COMPARE[n](low, limit) for v, (n, limit) in tests.items()})
        for low, high in pieces
    )


def _test(k: Kernel, value: Value, lane: str) -> tuple[str, int] | None:
    """(comparison, limit) where `value` compares the lane's position with a number."""
    instr = k.body[value]
    if not isinstance(instr, Op) or instr.name not in _COMPARE:
        return None
    one, other = (k.body[a] for a in instr.args)
    if isinstance(one, Const):
        return _limit(_MIRRORED[instr.name], other, one, lane)
    return _limit(instr.name, one, other, lane)


def _limit(name: str, position, number, lane: str) -> tuple[str, int] | None:
    if not isinstance(position, Index) or not isinstance(number, Const):
        return None
    index = position.map
    if index.terms != ((lane, 1),) or not isinstance(index.const, int):
        return None
    return (name, int(number.value) - index.const) if number.dtype.is_integral else None


def _change(name: str, limit: int) -> int:
    """The first position on the far side of a comparison with `limit`."""
    return limit if name in ("lt", "ge") else limit + 1
