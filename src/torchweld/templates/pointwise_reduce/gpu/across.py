"""Default tiles of reductions on a GPU where memory runs along the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir import size
from torchweld.ir.access import Accesses, linear
from torchweld.ir.live import most_live
from torchweld.ir.nodes import Reduce, value_axes
from torchweld.ir.size import divide
from torchweld.templates.pointwise_reduce.gpu.reads import (
    FEW_REDUCTIONS,
    HELD_VALUES,
    MANY_ALIVE,
    MOST_WAITING,
    WARP_COLUMNS,
    bytes_per_column,
    has_scans,
    in_wide_loads,
    most_held,
    most_of_sums,
    most_points,
    nearest_axes,
    reading,
    reads_again,
    row_starts,
    traffic,
    whole_loads,
    widest_element,
)
from torchweld.templates.pointwise_reduce.gpu.schedule import (
    MAX_POINTS_PER_THREAD,
    Schedule,
    extent,
    next_pow2,
    valid,
    warps_of,
)
from torchweld.templates.pointwise_reduce.gpu.shares import busy_block, programs_of_a_row
from torchweld.templates.pointwise_reduce.price import HELD_ACROSS

SMALL = 4 << 20  # points: a few microseconds
OUTER_BYTES = 8192  # of a tile whose rows are contiguous in memory, and have few columns
# Of rows whose last axis has an odd length, in blocks of it: points of a program, the share of its
# lanes that are at work, and elements that a thread loads, each alone, at a time.
LEAST_APART = 512
LEAST_INSIDE = 3 / 4
MOST_LOADED = 64
# Of a tile of rows that are contiguous in memory where programs are fewer than multiprocessors: in
# a loop, each step of which waits for memory, 264 partial sums of 1000 columns took 8 us (H200).
_MOST_OF_FEW = 16384
# Of few rows across memory that registers hold: bytes of a row's neighbours that are loaded
# together, points of a program at least, of a thread, and words that wait in it.
SEGMENT_BYTES, _HELD_POINTS, _HELD_BY_THREAD, _MOST_HELD = 64, 4096, 32, 64
# Rows across memory of more columns than one warp reduces: rows and points of a program, points of
# a thread. Threads that share a row meet in shared memory at every reduction unless they are of one
# warp, and a thread that has few columns has little to do between. 24 million elements in rows of
# 48 to 256, us on an H200, as before (64 rows of 64, or of 128 in 8 warps) and so, in float32 and
# bfloat16: variances of 48 123 and 31, 134 and 27; KL divergences of 48 201 and 58, 208 and 59, of
# 256 87 and 66, 131 and 68; weighted sums of log-softmaxes of 128 52 and 39, 56 and 35; softmaxes
# of 48 88 and 54, 86 and 33. Rows that begin anywhere are loaded number by number, 32 lanes beside
# each other: the softmax of 69 74 and 61, 37 and 38.
_TILE_ROWS, _TILE_POINTS = 32, 64
_LONE_ROWS, _LONE_POINTS, _LONE_COLUMNS = 64, 32, 256
_TILE, _TILE_WARPS, _TILE_LIVE = 16384, 16, 320
_TILE_BYTES = 8  # of a point
# Points of a thread where a tile is read along the columns and written along the rows. Channels
# last to first, 32 x 128 x 129 x 129 in float32, us on an H200, with 64 points and so: a sigmoid of
# softmaxes 299 and 172, layer norms 224 and 204, softmaxes 197 and 207.
_TURNED_POINTS = 16
# Partial sums of a row, of about so many shares: one program adds them up, 128 at a time. Sums of
# 400,009 rows of 37 in float32, us on an H200: 44 with 1389 shares, 24 with 528.
_MOST_SHARES = 384
_LONG_ROW = 64  # values


def across_memory(
    accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool
) -> Schedule | None:
    """Where the tensors that have columns are contiguous along a row axis rather than along the
    last column, or nearer together, where they are along none. Where a fifth of what is moved is,
    and the others along the columns (a norm over the channels of an image whose result has them
    last), tiles have to be wide as well. None for others."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    if not rows or all(a.offset.axes.isdisjoint(columns) for a in accesses.all):
        return None
    along, across = traffic(accesses, hints)
    tile = _tile(accesses, hints, sm_count) if 4 * across >= along else None
    return tile or (_outer(accesses, hints, sm_count, split) if across > along else None)


def _outer(accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool) -> Schedule:
    """Memory runs along the rows: wide tiles of them, few columns at a time."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    length, count = extent(accesses, columns), size.hint(extent(accesses, rows), hints)
    few, width = size.hint(length, hints), widest_element(accesses)
    block_rows = min(next_pow2(count), max(64, OUTER_BYTES // (width * next_pow2(few))))
    split = split and not _is_small(few, count)
    least = 1 if _has_long_rows(accesses) else 16
    while block_rows > least and not split and count < block_rows * 2 * sm_count:
        block_rows //= 2
    idle = not split and -(-count // block_rows) < sm_count
    most = _MOST_OF_FEW if idle else 4096  # a program has all loads under way, and others none
    most = min(most, 2 * most_held(accesses))
    fits = isinstance(length, int) and next_pow2(length) * block_rows <= most
    if fits:
        block = next_pow2(length)
        warps = warps_of(block * block_rows)
        if block <= WARP_COLUMNS:
            warps = min(warps, _warps_of_few(accesses, block_rows, width))
            while block_rows > 16 and block_rows * block > _points_of_few(accesses) * 32 * warps:
                block_rows //= 2
        return Schedule("persistent", rows, columns, block_rows, block, warps)
    held = _held(accesses, count, block_rows, sm_count)
    if held is not None:
        return held
    length = size.hint(length, hints)
    points, warps = _points_of_loop(accesses)
    block = busy_block(min(next_pow2(length), max(32, points // block_rows)), length)
    while block > 1 and block * block_rows > most_points(accesses, hints) * 32 * warps:
        block //= 2
    whole = Schedule("looped", rows, columns, block_rows, block, warps)
    programs = -(-count // block_rows)
    return _in_shares(whole, accesses, programs, length, sm_count) if split else whole


def _tile(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Schedule | None:
    """All columns of rows across memory, in as few warps as have registers for them: for rows that
    are many enough, and longer than those that one warp reduces anyway. None for others: what is
    read once, for one result, is as fast in a loop unless it is short."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    length, count = extent(accesses, columns), size.hint(extent(accesses, rows), hints)
    lone = any(divide(start, 2) is None for start, _ in row_starts(accesses))
    most = _LONE_COLUMNS if lone else HELD_ACROSS
    if not isinstance(length, int) or not WARP_COLUMNS < length <= min(most, most_held(accesses)):
        return None
    if bytes_per_column(accesses) > _TILE_BYTES or has_scans(accesses) or _has_long_rows(accesses):
        return None
    if reading(accesses) == "once" and length > 2 * WARP_COLUMNS:
        return None
    block, live = next_pow2(length), most_live(accesses.comp)
    block_rows = min(_LONE_ROWS if lone else _TILE_ROWS, _TILE // block)
    points = _LONE_POINTS if lone else _TILE_POINTS
    if _is_read_along(accesses, hints):
        points = _TURNED_POINTS
    while points > 16 and points * live > _TILE_LIVE:
        points //= 2
    while block_rows > 16 and (
        count < 4 * block_rows * sm_count or block_rows * block > 32 * points * _TILE_WARPS
    ):
        block_rows //= 2
    warps = max(1, block_rows * block // (32 * points))
    if count < 4 * block_rows * sm_count or warps > _TILE_WARPS:
        return None
    return Schedule("persistent", rows, columns, block_rows, block, warps)


def _is_read_along(accesses: Accesses, hints: Mapping[str, int]) -> bool:
    """Whether what has rows and columns is read along the columns."""
    columns, whole = set(accesses.frame.columns), whole_loads(accesses)
    return bool(whole) and all(columns & set(nearest_axes(accesses, a, hints)) for a in whole)


def _warps_of_few(accesses: Accesses, block_rows: int, width: int) -> int:
    """For rows of up to WARP_COLUMNS columns."""
    if sum(isinstance(i, Reduce) for i in accesses.comp.body) <= FEW_REDUCTIONS:
        return max(1, block_rows * width // (32 * 16))
    return 2 if in_wide_loads(accesses) else max(1, block_rows // 32)


def _points_of_few(accesses: Accesses) -> int:
    """Of a thread at most, for which there are registers: for what it loads, and for what is alive
    where that is much. Integers made of bytes are four times as wide as these."""
    loaded, live = MOST_WAITING * 4 // max(1, bytes_per_column(accesses)), most_live(accesses.comp)
    return min(loaded, HELD_VALUES // live) if live >= MANY_ALIVE else loaded


def _has_long_rows(accesses: Accesses) -> bool:
    """Whether much is computed for each row alone. Lanes that are along columns do that again, and
    bring what they load along the rows into that layout: a recurrence of 37 steps behind a sum is
    10,232 instructions and 86 barriers in tiles of 16 rows, 2,457 and none of one (sm_90)."""
    rows = set(accesses.frame.rows)
    return sum(bool(a) and a <= rows for a in value_axes(accesses.comp.body)) > _LONG_ROW


def _is_small(few: int, count: int) -> bool:
    """Whether a second kernel for `count` rows of `few` columns would take longer than it saves."""
    return few <= 64 or (few <= 512 and few * count <= SMALL)


def _held(accesses: Accesses, count: int, loop_rows: int, sm_count: int) -> Schedule | None:
    """Rows whose columns are read again for what waits for a reduction, and too few for loops over
    blocks of `loop_rows` to keep memory busy: all columns in registers, and all loads under way at
    once. None for others."""
    columns, width = accesses.frame.columns, widest_element(accesses)
    length, many = extent(accesses, columns), -(-count // loop_rows) >= 8 * sm_count
    if many or has_scans(accesses) or not (isinstance(length, int) and reads_again(accesses)):
        return None
    block = next_pow2(length)
    block_rows = min(loop_rows, max(SEGMENT_BYTES // width, _HELD_POINTS // block))
    warps = max(1, block * block_rows // (32 * _HELD_BY_THREAD))
    words = bytes_per_column(accesses) * _HELD_BY_THREAD // 4  # of a thread
    if warps > 16 or words > _MOST_HELD:
        return None
    return Schedule("persistent", accesses.frame.rows, columns, block_rows, block, warps)


def _in_shares(
    whole: Schedule, accesses: Accesses, programs: int, length: int, sm_count: int
) -> Schedule:
    """A loop across memory, by several programs for a block of rows. Loads do not run ahead: copies
    of four bytes each to shared memory are slow (sums of 64000 rows of 333 in float32 took an H200
    246 us with three on the way, 48 without)."""
    wide = in_wide_loads(accesses)
    wanted, most = (8 if wide else 16) * sm_count, _MOST_SHARES * programs
    if most_of_sums(accesses) < MAX_POINTS_PER_THREAD:  # a program of them fills a quarter
        wanted = 4 * sm_count
    if wanted > most and not wide and whole.block_columns > 1:  # more threads in each
        block, warps = whole.block_columns // 2, 2 * whole.num_warps
        whole = replace(whole, block_columns=block, num_warps=warps)
    shares = programs_of_a_row(programs, length, whole.block_columns, min(wanted, most))
    return replace(whole, splits=shares)


def _points_of_loop(accesses: Accesses) -> tuple[int, int]:
    """Of a block of a loop across memory, and its warps: in a scan, blocks wait for each other."""
    return (4096, 8) if has_scans(accesses) else (2048, 4)


def odd_rows_apart(
    found: Schedule, accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool
) -> Schedule:
    """Rows of several axes, the last steps of odd length: blocks within one of the others. Of a
    remainder by an odd number Triton knows no two neighbours to be contiguous, and would have lanes
    lie along the columns, across memory. Also where all rows of a step share what they read along
    the columns (a mask): a block within one has a number for each column, not for each point."""
    outer, inner = _steps_of_rows(accesses, found)
    across, length = extent(accesses, inner), extent(accesses, found.columns)
    odd = isinstance(across, int) and (across % 2 == 1 or _shared_by_rows(accesses, found, inner))
    if not outer or not odd or not _divided(accesses, found):
        return found
    block = _odd_block(found, across)
    made = replace(found, rows=inner, apart=outer, block_rows=block)
    if found.form == "looped":
        made = _loop_apart(made, accesses, hints, sm_count, split)
    worth = made.block_rows * size.hint(length, hints) >= LEAST_APART
    return made if worth and valid(made, accesses) else found


def _steps_of_rows(
    accesses: Accesses, found: Schedule
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The rows' axes, and behind them those that all that varies along the columns has next to each
    other: the last one at least, more where rows are in groups."""
    count = len(found.rows) - 1
    while count > 1 and not _divided(accesses, replace(found, rows=found.rows[count - 1 :])):
        count -= 1
    return found.rows[:count], found.rows[count:]


def _odd_block(found: Schedule, across: int) -> int:
    """Rows of a block of so many: most of its lanes at work, few elements for each thread."""
    block = min(found.block_rows, next_pow2(across))
    while block > 16 and (
        -(-across // block) * block * LEAST_INSIDE > across
        or block * found.block_columns > MOST_LOADED * 32 * found.num_warps
    ):
        block //= 2
    return block


def _loop_apart(
    made: Schedule, accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool
) -> Schedule:
    """A loop with as many columns at a time as its rows leave; blocks are narrower before there is
    another kernel."""
    length = size.hint(extent(accesses, made.columns), hints)
    across, apart = (size.hint(extent(accesses, a), hints) for a in (made.rows, made.apart))
    block, wanted = made.block_rows, 8 * sm_count
    split = split and not _is_small(length, apart * across)
    while split and block > 32 and 2 * apart * -(-across // block) < wanted:
        block //= 2
    columns = min(next_pow2(length), max(32, _points_of_loop(accesses)[0] // block))
    columns = busy_block(columns, length)
    while columns > 1 and columns * block > most_points(accesses, hints) * 32 * made.num_warps:
        columns //= 2
    splits = programs_of_a_row(apart * -(-across // block), length, columns, wanted) if split else 1
    return replace(made, block_rows=block, block_columns=columns, splits=splits)


def _shared_by_rows(accesses: Accesses, schedule: Schedule, inner: tuple[str, ...]) -> bool:
    """Whether what is read along the columns is the same for all rows of a step of the outer
    axes."""
    outer, columns = set(schedule.rows) - set(inner), set(schedule.columns)
    along = (a.offset.axes for a in accesses.loads.values() if a.offset.axes & columns)
    return any(axes.isdisjoint(inner) and not axes.isdisjoint(outer) for axes in along)


def _divided(accesses: Accesses, schedule: Schedule) -> bool:
    """Whether something along the columns is read at places that need each of the rows' axes."""
    columns = set(schedule.columns)
    along = (a.offset for a in accesses.loads.values() if not columns.isdisjoint(a.offset.axes))
    return any(linear(accesses, offset, schedule.rows) is None for offset in along)
