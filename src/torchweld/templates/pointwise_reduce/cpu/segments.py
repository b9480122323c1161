"""A lane cut where what its position decides changes: `cat`, `pad`, `roll`, rotary embeddings.

    for i in 0..800: v = i < 500 ? p[i] : q[i - 500]
    ->  for i in 0..500: v = p[i];   for i in 500..800: v = q[i - 500]
    for i in 0..130: v = p[abs(i - 1)]
    ->  for i in 0..2: v = p[1 - i];   for i in 2..130: v = p[i - 1]

Conditions and integers that the position alone decides are worked out for the whole lane. Within a
segment the former are constants, so that guards of loads fall away, and the latter go up or down in
equal steps, so that loads are of adjacent elements.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from torchweld.codegen.cpp import expr as x
from torchweld.core import dtypes
from torchweld.core.once import once
from torchweld.core.torch_private import without_modes
from torchweld.ir.nodes import Cast, Const, Index, Op, Value, needed, operands, store_operands
from torchweld.ir.scalar import TABLE
from torchweld.templates.pointwise_reduce.cpu.kernel import LANES, Kernel

KERNELS = 8  # whose lanes are known: each is asked about for every value that is written
MOST = 5  # each segment is another copy of the loop
LONGEST = 1 << 20  # of a lane whose positions are looked at one by one
# Operations on floats that are rounded as IEEE says.
_ALIKE = frozenset((
    "neg", "abs", "ceil", "floor", "trunc", "add", "sub", "mul", "div", "maximum", "minimum",
    "where",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions low to high - 1, and what is known of values there: texts."""

    low: int
    high: int
    known: dict[Value, str]


@once(KERNELS)
def segments(k: Kernel) -> tuple[Segment, ...]:
    """The lane in pieces; none if nothing is gained."""
    lane = k.schedule.nest[-1] if k.schedule.nest else None
    extent = k.comp.extent(lane) if lane else 0
    if k.staged or not isinstance(extent, int) or not LANES <= extent <= LONGEST:
        return ()
    with without_modes():  # this may be called while fake tensors are traced
        found = decided(k, lane, extent)
        cuts = _cuts(found, extent)
        pieces = list(itertools.pairwise(cuts))
        if not found or len(pieces) > MOST or max(high - low for low, high in pieces) < LANES:
            return ()
        return tuple(Segment(low, high, _known(k, found, low, high)) for low, high in pieces)


def decided(k: Kernel, lane: str, extent: int) -> dict[Value, torch.Tensor]:
    """At each position, the conditions and integers that it alone decides and that others use."""
    alone = {v for v, axes in enumerate(k.stages.axes) if axes == {lane}}
    alone = {v for v in alone if isinstance(k.body[v], (Op, Cast)) and not k.body[v].dtype.is_float}
    used = {u for v, i in enumerate(k.body) if v not in alone for u in operands(i)}
    used |= {u for s in k.comp.stores for u in store_operands(s)}
    values: dict[Value, torch.Tensor] = {}
    for value in sorted(needed(k.body, alone & used)):
        made = _made(k, value, values, extent)
        if made is not None:
            values[value] = made
    return {v: t for v, t in values.items() if v in alone & used}


def _made(k: Kernel, value: Value, known: dict[Value, torch.Tensor], extent: int):
    instr = k.body[value]
    if isinstance(instr, Const) and not instr.dtype.is_low_precision:
        return torch.full((extent,), instr.value, dtype=dtypes.to_torch(instr.dtype))
    if isinstance(instr, Index) and isinstance(instr.map.const, int):
        step = instr.map.coefficient(k.schedule.nest[-1])
        alone = len(instr.map.terms) <= 1 and isinstance(step, int)
        return torch.arange(extent) * step + instr.map.const if alone else None
    if isinstance(instr, Cast) and not instr.dtype.is_low_precision and instr.arg in known:
        return known[instr.arg].to(dtypes.to_torch(instr.dtype))
    if isinstance(instr, Op) and all(v in known for v in instr.args) and _is_told(instr):
        return TABLE[instr.name].meaning(*(known[v] for v in instr.args))
    return None


def _is_told(instr: Op) -> bool:
    """Whether torch's result is the kernel's to the bit."""
    return not instr.dtype.is_float or instr.name in _ALIKE


def _cuts(values: dict[Value, torch.Tensor], extent: int) -> list[int]:
    """Where segments begin, and the end: conditions stay, integers go on in equal steps."""
    cuts, steps = [0], [t.long().diff() for t in values.values()]
    stays = [t.dtype == torch.bool for t in values.values()]
    while cuts[-1] < extent and len(cuts) <= MOST + 1:
        low = cuts[-1]
        ends = [extent]
        for step, constant in zip(steps, stays):
            ahead = step[low:]
            first = ahead[:1] * (not constant)
            other = (ahead != first).nonzero()
            ends += [low + 1 + int(other[0])] if len(other) else []
        cuts.append(min(ends))
    return cuts


def _known(k: Kernel, values: dict[Value, torch.Tensor], low: int, high: int) -> dict[Value, str]:
    name = k.names[k.schedule.nest[-1]]
    return {v: text_of(k, v, t[low:high].tolist(), low, name) for v, t in values.items()}


def text_of(k: Kernel, value: Value, numbers: list, low: int, name: str) -> str:
    """`numbers` in equal steps, of a value at the positions from `low` on, which `name` counts."""
    dtype, first, step = k.body[value].dtype, numbers[0], numbers[-1] - numbers[0]
    if not step:
        return x.literal(first, dtype)
    step //= len(numbers) - 1
    start = first - step * low
    return f"({x.literal(start, dtypes.i64)} + {step} * {name})"
