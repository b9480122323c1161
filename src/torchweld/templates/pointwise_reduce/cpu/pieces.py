"""What a lane in segments reads, copied together before it is computed with.

    for i in 0..3: y[i] = sin(p[i + 53]);   for i in 3..59: y[i] = sin(q[i - 3])
    ->  for i in 0..3: m[i] = p[i + 53];   for i in 3..59: m[i] = q[i - 3]
        for i in 0..59: y[i] = sin(m[i])

A segment that is shorter than a vector is computed one by one, which is no loss for a copy and much
for anything longer.
"""

from __future__ import annotations

from torchweld.ir.nodes import (
    Const,
    Index,
    Instr,
    Load,
    Op,
    Value,
    needed,
    operands,
    store_operands,
)
from torchweld.templates.pointwise_reduce.cpu.kernel import CHEAP_ROW, LANES, Kernel
from torchweld.templates.pointwise_reduce.cpu.segments import Segment
from torchweld.templates.pointwise_reduce.cpu.stages import own_cost

MOST_BYTES = 1 << 14  # of an array on the stack
_CHOICES = frozenset(("where", "bit_and", "bit_or", "logical_not"))


def copied(
    k: Kernel, values: tuple[Value, ...], pieces: tuple[Segment, ...]
) -> tuple[Value, ...]:
    """The values of a pointwise lane to copy; none where that gains nothing. Conditions that pieces
    know are among them: a lane that compares its indices has vectors of half as many."""
    short = min(p.high - p.low for p in pieces) < LANES
    if k.frame.columns or k.schedule.abreast or not short or not copied_most(k):
        return ()
    known = frozenset(v for p in pieces for v in p.known)
    moved: set[Value] = set(known)
    for value in values:
        if value not in known and _is_moved(k, value, moved):
            moved.add(value)
    rest = [v for v in values if v not in moved]
    if sum(own_cost(k.body[v]) for v in rest) <= CHEAP_ROW:
        return ()
    used = {u for v in rest for u in operands(k.body[v])}
    used |= {u for s in k.comp.stores for u in store_operands(s)}
    lane = k.schedule.nest[-1]
    ends = [v for v in values if v in moved & used and lane in k.stages.axes[v]]
    ends = [v for v in ends if not known.isdisjoint(needed(k.body, (v,)))]
    return () if _is_longer(k, len(ends), rest, pieces) else tuple(ends)


def _is_longer(k: Kernel, copies: int, rest: list[Value], pieces: tuple[Segment, ...]) -> bool:
    """Whether copying the whole lane, in vectors, takes longer than to compute the elements of
    short segments one by one: few of many copies, as at the ends of a row of a stencil."""
    lengths = [p.high - p.low for p in pieces]
    single = sum(n for n in lengths if n < k.lanes) * sum(own_cost(k.body[v]) for v in rest)
    return k.overlaps and 2 * copies * sum(lengths) / k.lanes > single


def _is_moved(k: Kernel, value: Value, moved: set[Value]) -> bool:
    """Whether a value is loaded or chosen, where what it is made of is."""
    instr = k.body[value]
    if not _moves(instr):
        return False
    return all(u in moved or u not in k.stages.varying for u in operands(instr))


def _moves(instr: Instr) -> bool:
    return isinstance(instr, (Load, Const, Index)) or (
        isinstance(instr, Op) and instr.name in _CHOICES
    )


def copied_most(k: Kernel) -> int:
    """Elements of a lane, or of the block of it that is handed out; 0 if they are too many."""
    lane = k.schedule.nest[-1]
    block = dict(k.schedule.outer).get(lane, 1)
    count = block if block > 1 else k.comp.extent(lane)
    return count if isinstance(count, int) and 8 * count <= MOST_BYTES else 0
