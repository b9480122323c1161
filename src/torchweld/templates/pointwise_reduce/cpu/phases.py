"""A lane whose positions repeat in a pattern of a few: gradients of pooling in steps, nearest
neighbours, `repeat_interleave`.

    for i in 0..1000: v = tap[i / 2] == i % 2 ? g[i / 2] : 0
    ->  for w in 0..500: { i = 2 * w: v = tap[w] == 0 ? g[w] : 0 } { i = 2 * w + 1: ... }

As in segments.py, the position alone decides conditions and integers; here they go on in equal
steps from every second (third, ...) position to the next. So what was gathered one by one is read
in vectors, and what is stored is interleaved. The few positions at the ends that are in other steps
(the padding of a window) have loops of their own. A lane that is reduced has turns within each
vector, if it is all turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchweld.core.once import once
from torchweld.core.torch_private import without_modes
from torchweld.ir.nodes import Load, Scan, Value
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.segments import (
    KERNELS,
    LONGEST,
    decided,
    segments,
    text_of,
)

TURN = "w"  # the variable that counts turns of the pattern
FEWEST = 8  # turns: a vector of half the width
COUNTS = (2, 3, 4, 8)  # stores so far apart gcc 12 interleaves in registers
MOST_WRITTEN = 512  # instructions of all phases
WORTH = 0.75  # of the lane that the pattern covers


@dataclass(frozen=True, slots=True)
class Phases:
    """Position count * w + t for w from low to high - 1. `known[t]`: texts of values there;
    `first[t]`: what they would be for w = 0. `steady`: values that are the same for all w;
    `by_one`: those that go up by one from each to the next."""

    count: int
    low: int
    high: int
    known: tuple[dict[Value, str], ...]
    first: tuple[dict[Value, str], ...]
    steady: frozenset[Value]
    by_one: frozenset[Value]


def phases(k: Kernel) -> Phases | None:
    """The pattern of the lane of a pointwise kernel; None if it has none, or needs none."""
    return None if k.frame.columns else _of_lane(k)


def phases_of_vectors(k: Kernel) -> Phases | None:
    """That of the lane of a kernel with reductions, where it is all turns, and vectors
    (Kernel.lanes elements, from the start or up to the end) are whole ones. Threads that share a
    lane begin anywhere."""
    pattern = _of_lane(k) if k.frame.columns and not k.has_short_rows else None
    if pattern is None or pattern.low or k.lanes % pattern.count:
        return None
    lane, loads = k.schedule.nest[-1], ((v, k.body[v].guard) for v in k.accesses.loads)
    if lane == k.split_axis or dict(k.schedule.outer).get(lane, 1) > 1:
        return None
    varying = (guard for v, guard in loads if guard is not None and lane in k.stages.axes[v])
    whole = pattern.high * pattern.count == k.comp.extent(lane)
    return pattern if whole and pattern.known[0].keys() >= set(varying) else None


@once(KERNELS)
def _of_lane(k: Kernel) -> Phases | None:
    lane = k.schedule.nest[-1] if k.schedule.nest else None
    extent = k.comp.extent(lane) if lane else 0
    if not isinstance(extent, int) or not FEWEST <= extent <= LONGEST or not _is_plain(k):
        return None
    if segments(k):
        return None
    with without_modes():  # as in segments()
        found = decided(k, lane, extent)
        if not found or not _reads_by(k, found):
            return None
        tried = (_pattern(k, found, extent, count) for count in COUNTS)
        return next((p for p in tried if p is not None), None)


def _is_plain(k: Kernel) -> bool:
    """No scans, and each element stored once."""
    if k.staged or k.schedule.abreast:
        return False
    scatters = any(s.combine for s in k.comp.stores) or any(s.refs for s in k.accesses.stores)
    return not scatters and not any(isinstance(i, Scan) for i in k.body)


def _reads_by(k: Kernel, found: dict[Value, torch.Tensor]) -> bool:
    """Whether something is read at a place in `found`. Not where gcc could make one masked read of
    those of two phases, as in values.with_own_pointers: a guard that is not known, of adjacent
    elements."""
    lane, loads = k.schedule.nest[-1], k.accesses.loads.items()
    if any(_is_masked(k.body[v], found) and a.offset.coefficient(lane) != 0 for v, a in loads):
        return False
    return any(place in found for _, access in loads for place, _ in access.refs)


def _is_masked(load: Load, found: dict[Value, torch.Tensor]) -> bool:
    return load.guard is not None and load.guard not in found


def _pattern(k: Kernel, found: dict[Value, torch.Tensor], extent: int, count: int) -> Phases | None:
    """The longest run of turns in which every value goes on in equal steps."""
    turns = extent // count
    if turns < FEWEST or count * len(k.body) > MOST_WRITTEN:
        return None
    tables = {v: t[: turns * count].view(turns, count) for v, t in found.items()}
    low, high = _longest_run(tables, turns)
    if (high - low) * count < WORTH * extent:
        return None
    runs = {v: t[low:high] for v, t in tables.items()}
    known, first = ([_texts(k, runs, p, low, name) for p in range(count)] for name in (TURN, "0"))
    steady, by_one = (frozenset(v for v, t in runs.items() if _goes_up(t, by)) for by in (0, 1))
    return Phases(count, low, high, tuple(known), tuple(first), steady, by_one)


def _goes_up(run: torch.Tensor, by: int) -> bool:
    """From the first turn to the next, and so in all."""
    return bool((run[1].long() - run[0].long() == by).all())


def _texts(k: Kernel, runs: dict[Value, torch.Tensor], phase: int, low: int, name: str):
    """Of each value in a phase; `name` counts turns."""
    return {v: text_of(k, v, run[:, phase].tolist(), low, name) for v, run in runs.items()}


def _longest_run(tables: dict[Value, torch.Tensor], turns: int) -> tuple[int, int]:
    """(first, last + 1). A run ends where the step to the next turn is not the step before."""
    breaks = torch.zeros(turns, dtype=torch.bool)  # at w: the step from w - 1 to w is another
    for table in tables.values():
        steps = table.long().diff(dim=0)
        other = steps != 0 if table.dtype == torch.bool else steps.diff(dim=0) != 0
        breaks[turns - len(other) :] |= other.any(1)
    ends = [*breaks.nonzero().flatten().tolist(), turns]
    starts = [0, *ends[:-1]]
    return max(zip(starts, ends), key=lambda run: run[1] - run[0])


def told(k: Kernel) -> frozenset[Value]:
    """Values that are known wherever the lane's loop is most of the time."""
    return frozenset(v for known in _pieces(k) for v in known)


def is_told(k: Kernel, value: Value, text: str) -> bool:
    """Whether `text` is what is known of a value in a segment or a phase of the lane."""
    return any(known.get(value) == text for known in _pieces(k))


def _pieces(k: Kernel) -> list[dict[Value, str]]:
    pattern = _of_lane(k)
    return [s.known for s in segments(k)] + list(pattern.known if pattern else ())
