"""Default tiles of kernels that reduce or scan, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir import size
from torchweld.ir.access import Access, Accesses, sorts
from torchweld.ir.live import most_live
from torchweld.ir.nodes import Op, Reduce, value_axes
from torchweld.ir.passes import can_share_rows
from torchweld.ir.scalar import TABLE
from torchweld.templates.pointwise_reduce.gpu.across import across_memory, odd_rows_apart
from torchweld.templates.pointwise_reduce.gpu.reads import (
    FEW_REDUCTIONS,
    HELD_VALUES,
    ROUNDS,
    are_rows_aligned,
    bytes_per_column,
    has_scans,
    in_words,
    most_held,
    most_of_sums,
    reading,
    reads_again,
    widest_element,
)
from torchweld.templates.pointwise_reduce.gpu.schedule import (
    LOOPED_COLUMNS,
    MAX_POINTS_PER_THREAD,
    PERSISTENT_COLUMNS,
    REGISTER_BYTES,
    Schedule,
    extent,
    live_bytes,
    next_pow2,
    valid,
    warps_of,
)
from torchweld.templates.pointwise_reduce.gpu.shares import (
    BUSY_LANES,
    busy_block,
    equal_shares,
    programs_of_a_row,
)
from torchweld.templates.pointwise_reduce.gpu.sums_over_rows import NARROW_POINTS

# Points that a warp sorts (more warps would meet in shared memory for every step between them), and
# programs for each multiprocessor.
_SORTED_POINTS, _SORTING = 512, 16
THREAD_BYTES = 32  # that a thread of a loop asks for at a time: two loads
# Stages of a loop, as shared memory allows, with programs on each multiprocessor that keep memory
# busy.
AHEAD = ((4, 2), (3, 2), (1, 4))
# Programs for each multiprocessor where rows begin anywhere. They are loaded number by number, and
# copies to shared memory would be of four bytes each. Sums over channels in float32, us on an H200,
# with four of those under way and so: of 64 x 96 x 33 x 33 17 and 8, of 8 x 19 x 301 x 301 26
# and 18.
_PROGRAMS_APART = 8
ROW_BYTES = 256 << 10  # of a row for each multiprocessor, that stay in cache between two passes
MAX_BLOCK = 8192  # of a loop's columns
# Rows that a multiprocessor holds one at a time, of so many multiply-adds each, are shared where a
# quarter of the device would idle in the last wave: 160 rows of 6138 maxima of four tanh take an
# H100, whose multiprocessors are 132, 20.6 us in two waves.
_HEAVY_ROW, _ALONE, _IDLE = 1 << 18, 4096, 1 / 4
# By whether elements have 16 bits, and whether rows are read once, or again, or reduced to several
# results: how many lanes for each column are worth a loop, and columns of a block at most. H200, 40
# million elements, whole rows and loops, us: sums in bfloat16, rows of 70 45 and 22, of 200 32 and
# 22, of 768 33 and 20, of 1024 25 and 20; float32, of 130 48 and 39, of 200 38 and 39; variances in
# bfloat16, of 130 49 and 43, of 600 42 and 27, float32 42 and 46; layer norms and softmaxes in
# float32, of 130 165 and 100, 148 and 120, of 600 92 and 92, 93 and 104, in bfloat16, of 130 60 and
# 70, 52 and 91.
_NARROW_WARPS = 4
_NARROW_BLOCKS = {
    (True, "once"): (1.25, 256), (True, "several"): (1.25, PERSISTENT_COLUMNS),
    (False, "once"): (1.5, PERSISTENT_COLUMNS), (False, "again"): (1.75, PERSISTENT_COLUMNS),
}  # fmt: skip
# Live values of a thread that reads rows in blocks, since registers do not hold those of a row.
# Gradients of two softmaxes over 16001 columns in bfloat16, nine for each column, 4096 rows, us on
# an H200: a row in 16 warps 867 (592 bytes of each thread spill), blocks of 4 points a thread 287,
# of 8 points 331, 8192 in 32 warps 642. Two softmaxes, six for each column: 292, which does not
# spill, but leaves one row to a multiprocessor; 226, 268 and 461.
_LIVE_WORDS = 40
# Rows of up to 1024 columns that begin anywhere: points of a program, and programs, of one warp,
# for each multiprocessor. H200, float32, us, as they were (1024 points in 4 warps), with 1024 in
# one and so, rows counted at the call: 160,291 softmaxes of 157 columns 88, 49 and 51, layer norms
# behind a GELU 133, 81 and 65, 75,573 of 333 81, 57 and 59; 10,381 softmaxes of 101 5.5, 4.2 and
# 3.6. And multiply-adds for each point that are much work, and points of a program with that: 7345
# masked softmaxes of 101 with logarithms and divisions 13 as they were, 6 with 256 in one warp.
_LONE_ROW_POINTS, _LONE_WARPS = 512, 10
_MUCH_WORK, _WORKED_POINTS = 48, 256
MIN_PIECE = 2048  # of columns; blocks of fewer have too little to load at a time


def reducing(accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool) -> Schedule:
    frame = accesses.frame
    rows, columns = frame.rows, frame.columns
    if sorts(accesses.comp):
        return _in_order(accesses, hints, sm_count)
    split = split and can_share_rows(accesses.comp, accesses.frame)
    if found := across_memory(accesses, hints, sm_count, split):
        return odd_rows_apart(found, accesses, hints, sm_count, split)
    length, count = extent(accesses, columns), size.hint(extent(accesses, rows), hints)
    fits = isinstance(length, int) and length <= min(PERSISTENT_COLUMNS, most_held(accesses))
    idle = split and count < sm_count // 4 and size.hint(length, hints) > 4096
    if fits and split and _is_heavy(accesses, length) and _idles(count, sm_count):
        return _shared_rows(accesses, count, length, sm_count)
    if fits and not idle:
        live = most_live(accesses.comp)
        if live_bytes(length, live) >= REGISTER_BYTES:
            return _read_again(accesses, count, length, live, sm_count)
        block = next_pow2(length)
        if narrow := _in_narrow_blocks(accesses, length, count, sm_count):
            return narrow
        block_rows = _rows_per_program(accesses, block, count, hints, sm_count)
        alone = count <= 2 * sm_count
        warps = _row_warps(accesses, block_rows, block, hints, alone)
        return Schedule("persistent", rows, columns, block_rows, block, warps)
    return _loop(accesses, count, size.hint(length, hints), sm_count, split)


def _in_narrow_blocks(
    accesses: Accesses, length: int, count: int, sm_count: int
) -> Schedule | None:
    """A loop over the columns, where a block for whole rows has many idle lanes, or 16 bits of many
    columns for each: for rows of which there are enough to keep loads under way. None for
    others."""
    found = _NARROW_BLOCKS.get((widest_element(accesses) <= 2, reading(accesses)))
    if found is None:
        return None
    whole, (least, widest) = next_pow2(length), found
    block = min(whole, widest)
    block = busy_block(block, length)
    points = min(NARROW_POINTS, 32 * _NARROW_WARPS * most_of_sums(accesses))
    rows = max(1, points // block)
    saves = whole >= least * length and -(-length // block) * block <= BUSY_LANES * whole
    if not (saves or widest < whole) or count < 4 * rows * sm_count:
        return None
    frame = accesses.frame
    return Schedule("looped", frame.rows, frame.columns, rows, block, _NARROW_WARPS)


def _in_order(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Schedule:
    """Whole rows, several to a warp if they are short."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    block, count = next_pow2(extent(accesses, columns)), size.hint(extent(accesses, rows), hints)
    block_rows = max(1, _SORTED_POINTS // block)
    while block_rows > 1 and count < block_rows * _SORTING * sm_count:
        block_rows //= 2
    warps = warps_of(block * block_rows, _SORTED_POINTS // 32)
    return Schedule("persistent", rows, columns, block_rows, block, warps)


def _read_again(
    accesses: Accesses, count: int, length: int, live: int, sm_count: int
) -> Schedule:
    """In blocks whose values fit in registers, of rows that stay in cache between two passes."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    points = max(1, _LIVE_WORDS // live)
    warps = 8 if count > 2 * sm_count else 32
    block = min(next_pow2(length), 32 * warps * (1 << (points.bit_length() - 1)))
    return Schedule("looped", rows, columns, 1, block, warps)


def _is_heavy(accesses: Accesses, length: int) -> bool:
    """Whether a row fills a multiprocessor, and has that much work."""
    return length > _ALONE and length * _work(accesses) >= _HEAVY_ROW


def _work(accesses: Accesses) -> float:
    """Multiply-adds for each point, without those of reductions."""
    axes, columns = value_axes(accesses.comp.body), set(accesses.frame.columns)
    along = (i for i, a in zip(accesses.comp.body, axes) if isinstance(i, Op) and a & columns)
    return sum(TABLE[i.name].cost for i in along)


def _idles(count: int, sm_count: int) -> bool:
    """Whether waves of one row for each multiprocessor leave much of the device without work."""
    return 0 < count <= (1 - _IDLE) * sm_count * -(-count // sm_count)


def _shared_rows(accesses: Accesses, count: int, length: int, sm_count: int) -> Schedule:
    """Each row in shares of blocks; a second kernel merges them."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    blocks, most = -(-length // LOOPED_COLUMNS), -(-4 * sm_count // count)
    shares = equal_shares(blocks, most, most * 2 // 3)
    return Schedule("looped", rows, columns, 1, LOOPED_COLUMNS, 8, shares)


def _loop(accesses: Accesses, count: int, length: int, sm_count: int, split: bool) -> Schedule:
    """`count` rows of `length` columns, in blocks of these."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    block, warps = LOOPED_COLUMNS * (_loads_for_each(accesses) if split else 1), 8
    row_bytes = length * bytes_per_column(accesses)
    alone = row_bytes <= ROW_BYTES or count <= 2 * sm_count
    if alone and reads_again(accesses) and are_rows_aligned(accesses):
        block, warps = 8192, 32  # a row at a time on each multiprocessor, which stays in cache
    elif not split and count <= 2 * sm_count and not has_scans(accesses):
        block, warps = 2 * block, 2 * warps  # else half of a multiprocessor's threads have no row
    apart = _read_by_piece(accesses)
    piece = _piece(accesses) if apart else MAX_BLOCK
    if MIN_PIECE <= piece < block and 2 * row_bytes <= ROW_BYTES:  # two rows at a time, then
        block, warps = piece, max(8, warps * piece // block)
    few = most_of_sums(accesses)
    while block > 32 * warps * few:
        block //= 2
    if block > length:
        block, warps = next_pow2(length), max(1, warps * next_pow2(length) // block)
    whole = Schedule("looped", rows, columns, 1, block, warps)
    if not split:
        return whole
    shared = _by_several(whole, accesses, count, length, sm_count)
    return shared if shared.splits > 1 else whole


def _by_several(
    whole: Schedule, accesses: Accesses, count: int, length: int, sm_count: int
) -> Schedule:
    """`count` rows, each by several programs, whose loads run ahead where that is faster."""
    apart, ways = _read_by_piece(accesses), AHEAD
    if most_of_sums(accesses) < MAX_POINTS_PER_THREAD:
        ways = AHEAD[-1:]
    elif not are_rows_aligned(accesses) and in_words(accesses):
        ways, warps = ((1, _PROGRAMS_APART),), max(1, whole.num_warps // 2)
        block = whole.block_columns * warps // whole.num_warps
        whole = replace(whole, block_columns=block, num_warps=warps)
    shared = (
        replace(whole, stages=ahead,
                splits=programs_of_a_row(count, length, whole.block_columns, programs * sm_count))
        for ahead, programs in ways
        if ahead == 1 or _piece(accesses) % whole.block_columns == 0
        or all(a.bytes < 4 for a in apart)
    )  # fmt: skip
    return next((s for s in shared if valid(s, accesses)), whole)


def _read_by_piece(accesses: Accesses) -> list[Access]:
    """What is read along columns, but not along the last of their axes: a channel's weight amid
    images. It is one number for a block within one image, else one for each lane. A loop that
    copies ahead copies it so, too (H100, float32, 128 rows of 1.1 MB: 623 us)."""
    *outer, last = accesses.frame.columns
    loads = accesses.loads.values()
    return [a for a in loads if last not in a.offset.axes and not a.offset.axes.isdisjoint(outer)]


def _piece(accesses: Accesses) -> int:
    """The largest block of columns that always lies within one step of all axes but the last."""
    inner = accesses.comp.extent(accesses.frame.columns[-1])
    return min(MAX_BLOCK, inner & -inner) if isinstance(inner, int) else 1


def _loads_for_each(accesses: Accesses) -> int:
    """Sets of eight elements that a thread takes in at a time: two where only one 16-bit tensor is
    read along the columns."""
    return 2 if 8 * bytes_per_column(accesses) < THREAD_BYTES else 1


def _rows_per_program(
    accesses: Accesses, block: int, count: int, hints: Mapping[str, int], sm_count: int
) -> int:
    """Short rows share a program, as long as there are programs for all multiprocessors."""
    lone = _moves_much(accesses, hints) and not are_rows_aligned(accesses)
    points, programs = (_LONE_ROW_POINTS, _LONE_WARPS) if lone else (1024, 2)
    if _work(accesses) >= _MUCH_WORK:
        points = _WORKED_POINTS
    rows, least = max(1, points // block), programs * sm_count
    while rows > 1 and count < rows * least:
        rows //= 2
    return rows


def _moves_much(accesses: Accesses, hints: Mapping[str, int]) -> bool:
    """Whether the memory is what is waited for: 8 bytes for each point."""
    count = size.hint(extent(accesses, accesses.frame.rows + accesses.frame.columns), hints)
    return sum(accesses.touched(a, hints) for a in accesses.all) >= 8 * count


def _row_warps(
    accesses: Accesses, block_rows: int, block: int, hints: Mapping[str, int], alone: bool
) -> int:
    """Rows of up to 1024 columns belong to one warp, which reduces without shared memory, unless
    they move so much that the memory is what is waited for. Rows that begin anywhere are loaded
    number by number, the lanes of all warps beside each other: there only one warp has whole rows.
    `alone`: a multiprocessor has hardly another program."""
    points = block_rows * block
    if block > 1024:
        return warps_of(points) if alone else max(2, warps_of(points, _points_of_row(accesses)))
    several = _moves_much(accesses, hints) and are_rows_aligned(accesses)
    return max(1, points // 256) if several else 1


def _points_of_row(accesses: Accesses) -> int:
    """Of a thread, in a row that several warps hold. At every reduction they wait for each other,
    and programs of fewer warps for fewer others."""
    if widest_element(accesses) > 2:
        return 16
    reduces = (i for i in accesses.comp.body if isinstance(i, Reduce))
    often = sum(ROUNDS.get(i.monoid, 1) for i in reduces) > FEW_REDUCTIONS
    points = 64 if often and bytes_per_column(accesses) <= 2 else 32
    while points > 16 and points * most_live(accesses.comp) > HELD_VALUES:
        points //= 2
    return points
