"""How a kernel is looped over on a CPU.

    for q in outer:            distributed among threads (distribute == "rows")
      stage 0..: for nest:     the innermost loop, the lane, is vectorised

lane "column": the innermost loop runs along the columns of one row (pointwise: along the innermost
axis). lane "row": it runs along a block of adjacent rows, for reductions over a strided axis.

distribute  "rows"     each thread takes a fixed range of outer points
            "columns"  few rows: all threads share each row, and combine partial reductions
            "inner"    scatter: each thread takes vectors of the lane, so that no two meet
            "serial"   colliding writes, or too little to share
            "given"    outer points first to last - 1, which the caller names

The division of work depends on sizes and the number of threads alone, never on timing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torchweld.ir import size
from torchweld.ir.access import Access, Accesses, addressed
from torchweld.ir.expand import expanded
from torchweld.ir.interval import bounds
from torchweld.ir.nodes import (
    Buffer,
    Comp,
    Instr,
    Load,
    Reduce,
    Scan,
    Value,
    needed,
    store_axes,
    value_axes,
)
from torchweld.ir.passes import stages
from torchweld.ir.unroll import is_short, unrolled
from torchweld.targets.cpu import core_cache_bytes, vector_lanes
from torchweld.templates.pointwise_reduce.cpu.lanes import cheapest_lane, longer_lane
from torchweld.templates.pointwise_reduce.cpu.tiles import BAND, tiles, turned_stores

FLAT_BLOCK = 2048  # elements of a flat loop handed out at a time
TILE = 32  # both sides of a transposed tile: 32 lines of 128 bytes fit any first-level cache
ROW_BLOCKS = (256, 128, 64, 32, 16)
# A last block of rows abreast that is whole, over some of the one before, is sooner made than one
# that is cut short. 400 x 23 rows of so many numbers apart, ns for each on a Xeon (AVX-512), cut
# and whole: `logsumexp` of 15 2.1 and 1.0, of 20 2.3 and 1.0, of 23 3.0 and 0.8, of 31 2.2 and 0.6,
# of 47 1.8 and 0.6; softmax of 23 3.9 and 1.1, sums of quotients 0.6 and 0.4.
BLOCK_TIME = 0.5  # of a vector: what is read once for a block of rows abreast, for each column
INNER_BLOCK = 16  # elements of a lane that no two threads share: each does all that is around them
SHORT_LANE = 8  # pointwise lanes no longer than this run several points of the next axis abreast
_MOST_WRITTEN = 256  # instructions of all points of a lane that is written out


@dataclass(frozen=True, slots=True)
class CpuSchedule:
    """`outer`: (axis, block): a block of one hands out single points. `nest`: the axes looped over
    within an outer point, outermost first; the last is the lane. `abreast`: an axis of a few
    points, which the lane's loop writes out."""

    outer: tuple[tuple[str, int], ...]
    nest: tuple[str, ...]
    lane: Literal["row", "column"]
    distribute: Literal["rows", "columns", "inner", "serial", "given"]
    abreast: str | None = None


def formed(
    comp: Comp, buffers: Mapping[str, Buffer], hints: Mapping[str, int] | None = None
) -> Accesses:
    """What is generated of a Comp: without tuple reductions, and with reductions of a few terms
    over lanes of neighbours written out. Else their partial results are arrays, which are read and
    written for each term: variances of 4 took 1.5 times as long on a Zen 4, sums of 4 numbers of
    bfloat16 1.7 times."""
    comp = expanded(comp)
    accesses = addressed(comp, buffers, hints)
    columns = accesses.frame.columns
    if not columns or accesses.frame.column_reductions or not is_short(comp, columns):
        return accesses
    if not _has_plain_lane(accesses, hints or {}):
        return accesses
    return addressed(unrolled(comp, columns), buffers, hints)


def _has_plain_lane(accesses: Accesses, hints: Mapping[str, int]) -> bool:
    """Whether the cheapest lane is the one that pointwise kernels have, and all that it reads and
    writes lies side by side along it."""
    lane = cheapest_lane(accesses, ROW_BLOCKS[0], hints)
    last = accesses.frame.rows[-1:]
    return (lane,) == last and all(a.offset.coefficient(lane) in (0, 1) for a in accesses.all)


def schedule(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    hints: Mapping[str, int] | None = None,
    threads: int | None = None,
) -> CpuSchedule:
    """The default schedule of a planned Comp. `hints`: typical values of shape symbols."""
    accesses = formed(comp, buffers, hints)
    known, threads = hints or {}, threads or os.cpu_count() or 1
    if accesses.frame.columns:
        return _reducing(accesses, known, threads)
    return _pointwise(accesses, known, threads)


def _pointwise(accesses: Accesses, hints: Mapping[str, int], threads: int) -> CpuSchedule:
    rows = accesses.frame.rows
    if not rows:
        return CpuSchedule((), (), "column", "serial")
    *others, lane = rows
    collision = _collision(accesses, lane)
    if collision is not None:
        return CpuSchedule(tuple((a, 1) for a in others), (lane,), "column", collision)
    across = _transposed(accesses, hints)
    if across is not None:
        if _scatters(accesses, lane, across):
            lane, across = across, lane
        rest = tuple((a, 1) for a in rows if a not in (across, lane))
        return CpuSchedule((*rest, (across, TILE), (lane, TILE)), (across, lane), "column", "rows")
    short = None
    if _is_short(accesses, lane):
        if _count(accesses, others[-1:], hints) < 2 * SHORT_LANE:
            return _across(accesses, tuple(others), lane, hints)
        if _in_groups(accesses, lane, others[-1]):
            short, lane, others = lane, others[-1], others[:-1]
        elif (nested := _short_rows(accesses, tuple(others), lane, hints, threads)) is not None:
            return nested
    if short is None and (long := longer_lane(accesses, ROW_BLOCKS[2], hints)) is not None:
        rest = tuple((a, 1) for a in others if a != long)
        return CpuSchedule(((long, ROW_BLOCKS[2]), *rest), (lane, long), "column", "rows")
    outer = tuple((a, 1) for a in others)
    if _count(accesses, others, hints) < 8 * threads:
        outer += ((lane, FLAT_BLOCK),)
    return CpuSchedule(outer, (lane,), "column", "rows", short)


def _short_rows(
    accesses: Accesses, rows: tuple[str, ...], lane: str, hints: Mapping[str, int], threads: int
) -> CpuSchedule | None:
    """One short lane after the other along the last of several axes of rows: no row is found by
    divisions. None where there are too few rows for the threads."""
    *others, last = rows
    long = _count(accesses, [last], hints) >= 8 * ROW_BLOCKS[2]
    if not others or (_count(accesses, others, hints) < 8 * threads and not long):
        return None
    outer = tuple((a, 1) for a in others) + (((last, ROW_BLOCKS[2]),) if long else ())
    return CpuSchedule(outer, (last, lane), "column", "rows")


def _is_short(accesses: Accesses, lane: str) -> bool:
    """Whether a lane has few points, and is not alone."""
    extent = accesses.comp.extent(lane)
    short = isinstance(extent, int) and 1 < extent <= SHORT_LANE and len(accesses.frame.rows) > 1
    return short and extent * len(accesses.comp.body) <= _MOST_WRITTEN


def _in_groups(accesses: Accesses, short: str, lane: str) -> bool:
    """Whether the points of a short axis are elements of vectors where they are written out: gcc
    loads and stores groups of 3 and of powers of two, others one by one. 8 of 9 elements of a row
    took 7 times as long on a Zen 4 as with the short axis as the lane, exp of rows of 6 2.6 times.
    Vectors of 2 or 3 hold too little."""
    along = [a.offset for a in accesses.all if a.offset.coefficient(short) != 0]
    steps = [offset.coefficient(lane) for offset in along]
    whole = all(isinstance(n, int) and (n == 3 or n & (n - 1) == 0) for n in steps)
    return whole or accesses.comp.extent(short) < 4


def _across(
    accesses: Accesses, rows: tuple[str, ...], short: str, hints: Mapping[str, int]
) -> CpuSchedule:
    """Where the last two axes are short: along the innermost axis that is not, a few vectors at a
    time, so that what they touch stays in the cache while the axes within it pass."""
    long = [a for a in rows if _count(accesses, [a], hints) >= 2 * SHORT_LANE]
    if not long:
        outer = tuple((a, 1) for a in rows)
        return CpuSchedule(outer, (short,), "column", "rows")
    blocks = tuple((a, ROW_BLOCKS[-2] if a == long[-1] else 1) for a in rows)
    return CpuSchedule(blocks, (long[-1],), "column", "rows", short)


def _reducing(accesses: Accesses, hints: Mapping[str, int], threads: int) -> CpuSchedule:
    rows, columns = accesses.frame.rows, accesses.frame.columns
    distribute = "rows" if all(map(_apart, _colliders(accesses))) else "serial"
    divisible = not accesses.frame.column_reductions and not _scans(accesses)
    long = _count(accesses, columns, hints) >= 4096
    count = _count(accesses, rows, hints)
    lane = cheapest_lane(accesses, ROW_BLOCKS[0], hints)
    if lane is None:
        if divisible and long and count < 2 * threads and distribute == "rows":
            distribute = "columns"
        return CpuSchedule(tuple((a, 1) for a in rows), columns, "column", distribute)
    fitting = [b for b in ROW_BLOCKS if count // b >= 2 * threads]
    block = min(fitting[0] if fitting else ROW_BLOCKS[-1], _most_in_cache(accesses, hints))
    if (
        divisible
        and not fitting
        and _count(accesses, columns, hints) >= 256
        and distribute == "rows"
    ):
        block, distribute = ROW_BLOCKS[0], "columns"
    if turned := tiles(accesses, lane):
        block = min(block, turned.rows(accesses, ROW_BLOCKS))
    if turned_stores(accesses, lane):
        block = min(block, BAND)
    extent = accesses.comp.extent(lane)
    if isinstance(extent, int):
        block = min(block, next((b for b in ROW_BLOCKS[::-1] if b >= extent), block))
        if distribute == "rows" and may_overlap(accesses, lane):
            block = _overlapping_block(extent, block)
    outer = (*((a, 1) for a in rows if a != lane), (lane, block))
    return CpuSchedule(outer, (*columns, lane), "row", distribute)


def may_overlap(accesses: Accesses, lane: str) -> bool:
    """Whether the last block of rows abreast may be a whole one, over some of the one before: what
    it stores is stored again, and nothing is turned or added up over rows."""
    turned = tiles(accesses, lane) is not None or turned_stores(accesses, lane)
    return stores_again(accesses.comp) and not turned and not accesses.frame.column_reductions


def stores_again(comp: Comp) -> bool:
    """Whether what it stores may be stored twice."""
    return not set(comp.reads) & set(comp.writes) and not any(s.combine for s in comp.stores)


def overlaps_sooner(extent: int, block: int) -> bool:
    """Whether blocks of so many of `extent` rows are made sooner with the last one whole."""
    return extent >= block and _whole_time(extent, block) < _cut_time(extent, block)


def _overlapping_block(extent: int, block: int) -> int:
    """The block with which whole ones take least; `block` if a cut one takes no longer."""
    found = [b for b in (*ROW_BLOCKS, 8) if b <= min(extent, block)]
    best = min(found, key=lambda b: _whole_time(extent, b), default=block)
    return best if found and _whole_time(extent, best) < _cut_time(extent, block) else block


def _whole_time(extent: int, block: int) -> float:
    """For each column, in times of what a vector takes."""
    return -(-extent // block) * (max(1, block / vector_lanes()) + BLOCK_TIME)


def _cut_time(extent: int, block: int) -> float:
    """The same with a last block that gcc 12 makes in vectors, half of one, and row by row; of less
    than a vector of 16, in a half, a quarter, and row by row."""
    lanes, (blocks, rest) = vector_lanes(), divmod(extent, block)
    vectors, left = divmod(rest, lanes)
    half = max(4, lanes // 2)
    quarter = left >= half > 4 and not vectors and left % half >= 4
    cut = vectors + (left >= half) + quarter + left % half - 4 * quarter
    return blocks * (max(1, block / lanes) + BLOCK_TIME) + (cut + BLOCK_TIME if rest else 0)


def _most_in_cache(accesses: Accesses, hints: Mapping[str, int]) -> int:
    """Rows abreast whose columns stay in a core's cache until they are read again; at least as many
    as make lines that the processor reads ahead. Layer norms over 2006 channels, in the order of
    what they read, took 18.9 ms with 256 rows abreast, 12.7 with 64 (Xeon with AVX-512, 2 MB for
    each core)."""
    body, columns = accesses.comp.body, set(accesses.frame.columns)
    passes = zip(stages(body, accesses.frame.column_reductions), value_axes(body))
    if not any(number and axes & columns for number, axes in passes):
        return ROW_BLOCKS[0]  # they are read once
    points = {a.name for a in accesses.comp.axes}
    width = sum(a.bytes for a in accesses.loads.values() if points <= a.offset.axes)
    row = max(1, width * _count(accesses, accesses.frame.columns, hints))
    fitting = [b for b in ROW_BLOCKS if b * row <= core_cache_bytes() // 2]
    return max(fitting[0] if fitting else 0, ROW_BLOCKS[2])


def _transposed(accesses: Accesses, hints: Mapping[str, int]) -> str | None:
    """The axis along which accesses that jump along the lane are contiguous."""
    *others, lane = accesses.frame.rows
    jumping = [a for a in accesses.all if jumps(a, lane)]
    found = [o for o in others if any(a.offset.coefficient(o) == 1 for a in jumping)]
    long = [
        o for o in found if min(_count(accesses, [o], hints), _count(accesses, [lane], hints)) >= 8
    ]
    return long[0] if long else None


def _scatters(accesses: Accesses, lane: str, across: str) -> bool:
    """Whether stores jump along the lane, and loads could instead: tiles of those are turned in
    registers."""
    body, turned = accesses.comp.body, [a for a in accesses.loads.items() if jumps(a[1], across)]
    plain = all(not a.refs and turns(body, body[v].guard, lane, across) for v, a in turned)
    stores = accesses.stores
    return plain and all(jumps(a, lane) and a.offset.coefficient(across) == 1 for a in stores)


def turns(body: Sequence[Instr], guard: Value | None, across: str, lane: str) -> bool:
    """Whether a load with this guard can be turned with its tile: the guard asks about lines of the
    tile or about its columns, not about both, and reads nothing."""
    if guard is None:
        return True
    reads = any(isinstance(body[v], (Load, Reduce, Scan)) for v in needed(body, (guard,)))
    return not reads and not {across, lane} <= value_axes(body)[guard]


def jumps(access: Access, axis: str) -> bool:
    return access.offset.coefficient(axis) not in (0, 1)


def _count(accesses: Accesses, axes, hints: Mapping[str, int]) -> int:
    return size.hint(size.product(accesses.comp.extent(a) for a in axes), hints)


def _scans(accesses: Accesses) -> bool:
    return any(isinstance(i, Scan) for i in accesses.comp.body)


def _colliders(accesses: Accesses) -> list[tuple[Accesses, Access, frozenset[str]]]:
    """Stores that several points may write (combined or scattered ones), with the points' axes."""
    axes, pairs = value_axes(accesses.comp.body), zip(accesses.comp.stores, accesses.stores)
    found = []
    for store, access in pairs:
        if store.combine is not None or access.refs:
            points = store_axes(accesses.comp, store, axes)
            found.append((accesses, access, points))
    return found


def _apart(collider: tuple[Accesses, Access, frozenset[str]]) -> bool:
    """Whether different points write different elements, seen from the strides alone."""
    accesses, access, axes = collider
    if access.refs or not axes <= access.offset.axes:
        return False
    terms = sorted(access.offset.terms, key=lambda t: size.hint(t[1], {}))
    reach = 1
    for axis, coefficient in terms:
        extent = accesses.comp.extent(axis)
        if not isinstance(coefficient, int) or not isinstance(extent, int) or coefficient < reach:
            return False
        reach = coefficient * extent
    return True


def _collision(accesses: Accesses, lane: str) -> Literal["inner", "rows", "serial"] | None:
    """How a pointwise kernel with colliding stores is distributed; None if there are none."""
    colliding = [c[1] for c in _colliders(accesses) if not _apart(c)]
    if not colliding:
        return None
    extent = accesses.comp.extent(lane)
    divisible = not isinstance(extent, int) or extent >= 2 * INNER_BLOCK
    if divisible and all(_lane_apart(accesses, a, lane) for a in colliding):
        return "inner"
    return "rows" if all(_rows_apart(accesses, a, lane) for a in colliding) else "serial"


def _rows_apart(accesses: Accesses, access: Access, lane: str) -> bool:
    """Whether points write different elements that differ in other axes than the lane: steps along
    each are longer than the lane and computed indices reach."""
    within, offset = bounds(accesses.comp, lambda _: None), access.offset
    spans = [(step, *within[v]) for v, step in access.refs]
    spans.append((offset.coefficient(lane), 0, accesses.comp.extent(lane)))
    others = [(offset.coefficient(a), accesses.comp.extent(a)) for a in accesses.frame.rows[:-1]]
    known = all(isinstance(n, int) and n >= 0 for numbers in (*spans, *others) for n in numbers)
    if not known or not others:
        return False
    reach = sum(step * most for step, _, most in spans)
    for step, extent in sorted(others):
        if step <= reach:
            return False
        reach += step * extent
    return True


def _lane_apart(accesses: Accesses, access: Access, lane: str) -> bool:
    """Whether points that differ along the lane write different elements whatever the indices are:
    the lane is a dimension of its own, within the stride of each computed index."""
    axes = value_axes(accesses.comp.body)
    extent, coefficient = accesses.comp.extent(lane), access.offset.coefficient(lane)
    if coefficient != 1 or any(lane in axes[v] for v, _ in access.refs):
        return False
    steps = [s for _, s in access.refs] + [c for a, c in access.offset.terms if a != lane]
    return all(size.divide(s, extent) is not None for s in steps)


def combines_in_lane(accesses: Accesses, lane: str) -> bool:
    """Whether neighbours along the lane may write one element: it must not be vectorised then."""
    colliding = [c[1] for c in _colliders(accesses) if not _apart(c)]
    return not all(_lane_apart(accesses, a, lane) for a in colliding)
