"""Default tiles of kernels that reduce or scan, on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchweld.ir import size
from torchweld.ir.access import Access, Accesses, linear, sorts
from torchweld.ir.live import most_live
from torchweld.ir.nodes import (
    Op,
    Reduce,
    Scan,
    depends_on_loads,
    store_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.passes import can_share_rows, stages
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import Size, divide, product
from torchweld.templates.pointwise_reduce.gpu.lanes import TUPLES
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
from torchweld.templates.pointwise_reduce.price import HELD_ACROSS

SMALL = 4 << 20  # points: a few microseconds
OUTER_BYTES = 8192  # of a tile whose rows are contiguous in memory, and have few columns
# Of rows that are contiguous in memory: so many columns are reduced by one warp, whose threads have
# 16 bytes along the rows, and sums of their own. Several warps would meet in shared memory. Where
# there are more reductions than a softmax has, two warps have registers for them; a thread has one
# row where those do not begin at multiples of 16 bytes. A loss over 19 classes, 12 images, us on an
# H200, with one warp and so: 512 x 512 pixels, bfloat16 784 and 114, float32 368 and 84; 321 x 321,
# bfloat16 150 and 28. The softmax of 512 x 512 pixels would take 74 for 61 in bfloat16.
WARP_COLUMNS, _FEW_REDUCTIONS = 32, 2
# Of rows whose last axis has an odd length, in blocks of it: points of a program, the share of its
# lanes that are at work, and elements that a thread loads, each alone, at a time.
LEAST_APART = 512
LEAST_INSIDE = 3 / 4
MOST_LOADED = 64
_FEW_TILES = 12
# Elements of tiles for each thread. Windows of 5 x 5 with twice as many took 1.05 to 1.3 times as
# long on an H100, windows of 3 x 3 with half of them 0.9 to 1.2 times.
_MOST_WAITING = 176
# Running results of a thread: the sums for a window of 7 x 7, of one point each.
_MOST_RUNNING, _FEW_SUMS = 64, 8
# How often the threads of a row meet for one reduction; and the values, 16-bit ones among them,
# that a thread holds for all its points. With 16 points for each thread, layer norms of 40 million
# elements in rows of 2560, 5120 and 8192 take 70, 87 and 66 us on an H200, with 64 points 51, 54
# and 54; softmaxes of 20 million in rows of 2560 and 6144 take 30 and 28, with 32 points 26 and 26.
# Rows of float32 gain nothing.
_ROUNDS = {"welford": 3, "logsumexp": 2}
_HELD_VALUES, _MANY_ALIVE = 256, 8
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
# Of sums over rows beside whole rows, where one tensor of float32 is read: so many rows for each
# multiprocessor are worth a second program with partial sums of its own. Two results and a map, us
# on an H200: 4000 rows of 3000 97 and 82, of 1600 54 and 44, 300 rows of 4096 13 and 15.
_MANY_ROWS = 8
# Rows, warps and programs for each multiprocessor of sums over rows of so many columns, of 16 bits,
# whose loads run ahead. With two rows for each of eight warps Triton moves the tile between layouts
# in each step: 54 instructions for each of 256 columns in place of 23, and registers for one
# program in place of two (H100, 65536 rows: 99 us, where 134 MB take 44).
RUN_AHEAD = {256: (16, 16, 2), 512: (4, 2, 4)}
# Of a tile of rows that are contiguous in memory where programs are fewer than multiprocessors: in
# a loop, each step of which waits for memory, 264 partial sums of 1000 columns took 8 us (H200).
_MOST_OF_FEW = 16384
# Sums over rows of so few columns, which begin anywhere and have 4 bytes and more: points of a
# program. Copies that run ahead are of one element each then, and tiles take registers for their
# places (sm_90: 236 for 16 points a thread, which leaves 8 warps to a multiprocessor; 64 for 8 that
# are loaded as they are needed). 96000 rows of 33, three steps ahead, took 93 us on an H200.
_NARROW, _NARROW_POINTS = 256, 1024
ROW_BYTES = 256 << 10  # of a row for each multiprocessor, that stay in cache between two passes
MAX_BLOCK = 8192  # of a loop's columns
# Rows that a multiprocessor holds one at a time, of so many multiply-adds each, are shared where a
# quarter of the device would idle in the last wave: 160 rows of 6138 maxima of four tanh take an
# H100, whose multiprocessors are 132, 20.6 us in two waves.
_HEAVY_ROW, _ALONE, _IDLE = 1 << 18, 4096, 1 / 4
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
# Columns of a block at least, and the share of its lanes that are at work. By whether elements have
# 16 bits, and whether rows are read once, or again, or reduced to several results: how many lanes
# for each column are worth a loop, and columns of a block at most. H200, 40 million elements, whole
# rows and loops, us: sums in bfloat16, rows of 70 45 and 22, of 200 32 and 22, of 768 33 and 20, of
# 1024 25 and 20; float32, of 130 48 and 39, of 200 38 and 39; variances in bfloat16, of 130 49 and
# 43, of 600 42 and 27, float32 42 and 46; layer norms and softmaxes in float32, of 130 165 and 100,
# 148 and 120, of 600 92 and 92, 93 and 104, in bfloat16, of 130 60 and 70, 52 and 91.
_LEAST_BLOCK, _BUSY, _NARROW_WARPS = 32, 4 / 5, 4
_NARROW_BLOCKS = {
    (True, "once"): (1.25, 256), (True, "several"): (1.25, PERSISTENT_COLUMNS),
    (False, "once"): (1.5, PERSISTENT_COLUMNS), (False, "again"): (1.75, PERSISTENT_COLUMNS),
}  # fmt: skip
# Sums over rows beside whole rows, where memory runs along the rows: of up to so many columns, the
# points of a program, its warps, programs for each multiprocessor. `x = s * (a * r).sum(0)` with
# `(a * x).sum(1)`, us on an H200, as other rows are and so, in float32 and bfloat16: 509 x 24593 68
# and 20, 25 and 12; 60 x 200001 125 and 21, 12 and 14; 128 x 100000 20 and 17, 19 and 12;
# 1000 x 40000 88 and 64, 87 and 52.
_SUMS_ACROSS = {256: (4096, 4, 4), 1024: (8192, 8, 2)}
# Partial sums of a row, of about so many shares: one program adds them up, 128 at a time. Sums of
# 400,009 rows of 37 in float32, us on an H200: 44 with 1389 shares, 24 with 528.
_MOST_SHARES = 384
_LONG_ROW = 64  # values
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


def most_points(accesses: Accesses, hints: Mapping[str, int]) -> int:
    """Of a thread, for that."""
    points = size.hint(product(a.extent for a in accesses.comp.axes), hints)
    tiles = sum(8 * accesses.touched(a, hints) >= points * a.bytes for a in accesses.all)
    most = max(1, _MOST_WAITING // tiles) if tiles > _FEW_TILES else MAX_POINTS_PER_THREAD
    return min(most, _most_of_sums(accesses))


def _most_of_sums(accesses: Accesses) -> int:
    """Points of a thread of a loop whose many running results lie in registers: of reductions that
    wait for no other of them."""
    body = accesses.comp.body
    together = Counter(n for n, i in zip(stages(body), body) if isinstance(i, Reduce))
    running = max(together.values(), default=0)
    return max(1, _MOST_RUNNING // running) if running > _FEW_SUMS else MAX_POINTS_PER_THREAD


def _across_memory(
    accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool
) -> Schedule | None:
    """Where the tensors that have columns are contiguous along a row axis rather than along the
    last column, or nearer together, where they are along none. Where a fifth of what is moved is,
    and the others along the columns (a norm over the channels of an image whose result has them
    last), tiles have to be wide as well. None for others."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    if not rows or all(a.offset.axes.isdisjoint(columns) for a in accesses.all):
        return None
    along, across = _traffic(accesses, hints)
    tile = _tile(accesses, hints, sm_count) if 4 * across >= along else None
    return tile or (_outer(accesses, hints, sm_count, split) if across > along else None)


def _traffic(accesses: Accesses, hints: Mapping[str, int]) -> tuple[int, int]:
    """Bytes moved along the columns, of the axis that has most, and along the last of the rows'."""
    along = max(_near_traffic(accesses, c, hints) for c in accesses.frame.columns)
    return along, _near_traffic(accesses, accesses.frame.rows[-1], hints)


def _near_traffic(accesses: Accesses, axis: str, hints: Mapping[str, int]) -> int:
    """Bytes that are moved by accesses whose neighbours in memory are along `axis`."""
    near = (a for a in accesses.all if axis in _nearest(accesses, a, hints))
    return sum(accesses.touched(a, hints) for a in near)


def _nearest(accesses: Accesses, access: Access, hints: Mapping[str, int]) -> list[str]:
    """Axes along which the next element is nearest. An index that is computed of axes alone
    (windows of a pooling) is taken to be one more at the next point, or near that."""
    terms = [*access.offset.terms]
    for value, step in access.refs:
        if not depends_on_loads(accesses.comp)[value]:
            terms += [(axis, step) for axis in value_axes(accesses.comp.body)[value]]
    steps: dict[str, int] = {}
    for axis, step in terms:
        far = abs(size.hint(step, hints))
        steps[axis] = min(far, steps.get(axis, far))
    return [axis for axis, step in steps.items() if step == min(steps.values())]


def reducing(accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool) -> Schedule:
    frame = accesses.frame
    rows, columns = frame.rows, frame.columns
    if sorts(accesses.comp):
        return _in_order(accesses, hints, sm_count)
    split = split and can_share_rows(accesses.comp, accesses.frame)
    if found := _across_memory(accesses, hints, sm_count, split):
        return _odd_rows_apart(found, accesses, hints, sm_count, split)
    length, count = extent(accesses, columns), size.hint(extent(accesses, rows), hints)
    fits = isinstance(length, int) and length <= min(PERSISTENT_COLUMNS, _most_held(accesses))
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
    found = _NARROW_BLOCKS.get((_widest(accesses) <= 2, _reading(accesses)))
    if found is None:
        return None
    whole, (least, widest) = next_pow2(length), found
    block = min(whole, widest)
    block = _busy_block(block, length)
    points = min(_NARROW_POINTS, 32 * _NARROW_WARPS * _most_of_sums(accesses))
    rows = max(1, points // block)
    saves = whole >= least * length and -(-length // block) * block <= _BUSY * whole
    if not (saves or widest < whole) or count < 4 * rows * sm_count:
        return None
    frame = accesses.frame
    return Schedule("looped", frame.rows, frame.columns, rows, block, _NARROW_WARPS)


def _busy_block(block: int, length: int) -> int:
    """As many of `block` columns at a time as leave most lanes of a loop over `length` at work."""
    while block > _LEAST_BLOCK and -(-length // block) * block * _BUSY > length:
        block //= 2
    return block


def _reading(accesses: Accesses) -> str:
    """How columns of a row are read: `once`, for one result of each reduction or for `several`;
    `again`; or `often`, which is for registers alone."""
    if max(stages(accesses.comp.body)) > 2:
        return "often"
    several = any(isinstance(i, Reduce) and i.monoid in TUPLES for i in accesses.comp.body)
    return "again" if _returns(accesses) else "several" if several else "once"


def _in_order(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Schedule:
    """Whole rows, several to a warp if they are short."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    block, count = next_pow2(extent(accesses, columns)), size.hint(extent(accesses, rows), hints)
    block_rows = max(1, _SORTED_POINTS // block)
    while block_rows > 1 and count < block_rows * _SORTING * sm_count:
        block_rows //= 2
    warps = warps_of(block * block_rows, _SORTED_POINTS // 32)
    return Schedule("persistent", rows, columns, block_rows, block, warps)


def _most_held(accesses: Accesses) -> int:
    """Columns that a program may hold at once, and have running results of them in registers."""
    few = _most_of_sums(accesses)
    return 32 * 8 * few if few < MAX_POINTS_PER_THREAD else PERSISTENT_COLUMNS


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
    shares = _equal_shares(blocks, most, most * 2 // 3)
    return Schedule("looped", rows, columns, 1, LOOPED_COLUMNS, 8, shares)


def _loop(accesses: Accesses, count: int, length: int, sm_count: int, split: bool) -> Schedule:
    """`count` rows of `length` columns, in blocks of these."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    block, warps = LOOPED_COLUMNS * (_loads_for_each(accesses) if split else 1), 8
    row_bytes = length * _width(accesses)
    alone = row_bytes <= ROW_BYTES or count <= 2 * sm_count
    if alone and _returns(accesses) and _aligned(accesses):
        block, warps = 8192, 32  # a row at a time on each multiprocessor, which stays in cache
    elif not split and count <= 2 * sm_count and not _scans(accesses):
        block, warps = 2 * block, 2 * warps  # else half of a multiprocessor's threads have no row
    apart = _read_by_piece(accesses)
    piece = _piece(accesses) if apart else MAX_BLOCK
    if MIN_PIECE <= piece < block and 2 * row_bytes <= ROW_BYTES:  # two rows at a time, then
        block, warps = piece, max(8, warps * piece // block)
    few = _most_of_sums(accesses)
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
    if _most_of_sums(accesses) < MAX_POINTS_PER_THREAD:
        ways = AHEAD[-1:]
    elif not _aligned(accesses) and _in_words(accesses):
        ways, warps = ((1, _PROGRAMS_APART),), max(1, whole.num_warps // 2)
        block = whole.block_columns * warps // whole.num_warps
        whole = replace(whole, block_columns=block, num_warps=warps)
    shared = (
        replace(whole, stages=ahead,
                splits=_splits(count, length, whole.block_columns, programs * sm_count))
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


def _returns(accesses: Accesses) -> bool:
    """Whether something along the columns waits for a reduction, so that there is another pass."""
    comp, columns, stage = accesses.comp, accesses.frame.columns, stages(accesses.comp.body)
    axes = value_axes(comp.body)
    across = [s for s in comp.stores if store_axes(comp, s, axes).intersection(columns)]
    waiting = any(stage[v] for s in across for v in store_operands(s))
    return waiting or max(stage) > 1


def _aligned(accesses: Accesses) -> bool:
    """Whether all rows begin at multiples of 16 bytes; loops have a way to read others."""
    along, rows = accesses.frame.columns[-1], accesses.frame.rows
    beside = (a for a in accesses.all if a.offset.coefficient(along) == 1)
    steps = (a.offset.coefficient(r) * a.bytes for a in beside for r in rows)
    return all(divide(step, 16) is not None for step in steps)


def _width(accesses: Accesses) -> int:
    """Bytes that are read of each row for each of its columns, and of no other."""
    points = {a.name for a in accesses.comp.axes}
    return sum(a.bytes for a in accesses.loads.values() if points <= a.offset.axes)


def _loads_for_each(accesses: Accesses) -> int:
    """Sets of eight elements that a thread takes in at a time: two where only one 16-bit tensor is
    read along the columns."""
    return 2 if 8 * _width(accesses) < THREAD_BYTES else 1


def _outer(accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool) -> Schedule:
    """Memory runs along the rows: wide tiles of them, few columns at a time."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    length, count = extent(accesses, columns), size.hint(extent(accesses, rows), hints)
    few, width = size.hint(length, hints), _widest(accesses)
    block_rows = min(next_pow2(count), max(64, OUTER_BYTES // (width * next_pow2(few))))
    split = split and not _is_small(few, count)
    least = 1 if _has_long_rows(accesses) else 16
    while block_rows > least and not split and count < block_rows * 2 * sm_count:
        block_rows //= 2
    idle = not split and -(-count // block_rows) < sm_count
    most = _MOST_OF_FEW if idle else 4096  # a program has all loads under way, and others none
    most = min(most, 2 * _most_held(accesses))
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
    block = _busy_block(min(next_pow2(length), max(32, points // block_rows)), length)
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
    lone = any(divide(start, 2) is None for start, _ in _starts(accesses))
    most = _LONE_COLUMNS if lone else HELD_ACROSS
    if not isinstance(length, int) or not WARP_COLUMNS < length <= min(most, _most_held(accesses)):
        return None
    if _width(accesses) > _TILE_BYTES or _scans(accesses) or _has_long_rows(accesses):
        return None
    if _reading(accesses) == "once" and length > 2 * WARP_COLUMNS:
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
    points, columns = {a.name for a in accesses.comp.axes}, set(accesses.frame.columns)
    whole = [a for a in accesses.loads.values() if points <= a.offset.axes]
    return bool(whole) and all(columns & set(_nearest(accesses, a, hints)) for a in whole)


def _warps_of_few(accesses: Accesses, block_rows: int, width: int) -> int:
    """For rows of up to WARP_COLUMNS columns."""
    if sum(isinstance(i, Reduce) for i in accesses.comp.body) <= _FEW_REDUCTIONS:
        return max(1, block_rows * width // (32 * 16))
    return 2 if _in_wide_loads(accesses) else max(1, block_rows // 32)


def _points_of_few(accesses: Accesses) -> int:
    """Of a thread at most, for which there are registers: for what it loads, and for what is alive
    where that is much. Integers made of bytes are four times as wide as these."""
    loaded, live = _MOST_WAITING * 4 // max(1, _width(accesses)), most_live(accesses.comp)
    return min(loaded, _HELD_VALUES // live) if live >= _MANY_ALIVE else loaded


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
    columns, width = accesses.frame.columns, _widest(accesses)
    length, many = extent(accesses, columns), -(-count // loop_rows) >= 8 * sm_count
    if many or _scans(accesses) or not (isinstance(length, int) and _returns(accesses)):
        return None
    block = next_pow2(length)
    block_rows = min(loop_rows, max(SEGMENT_BYTES // width, _HELD_POINTS // block))
    warps = max(1, block * block_rows // (32 * _HELD_BY_THREAD))
    words = _width(accesses) * _HELD_BY_THREAD // 4  # of a thread
    if warps > 16 or words > _MOST_HELD:
        return None
    return Schedule("persistent", accesses.frame.rows, columns, block_rows, block, warps)


def _in_shares(
    whole: Schedule, accesses: Accesses, programs: int, length: int, sm_count: int
) -> Schedule:
    """A loop across memory, by several programs for a block of rows. Loads do not run ahead: copies
    of four bytes each to shared memory are slow (sums of 64000 rows of 333 in float32 took an H200
    246 us with three on the way, 48 without)."""
    wide = _in_wide_loads(accesses)
    wanted, most = (8 if wide else 16) * sm_count, _MOST_SHARES * programs
    if _most_of_sums(accesses) < MAX_POINTS_PER_THREAD:  # a program of them fills a quarter
        wanted = 4 * sm_count
    if wanted > most and not wide and whole.block_columns > 1:  # more threads in each
        block, warps = whole.block_columns // 2, 2 * whole.num_warps
        whole = replace(whole, block_columns=block, num_warps=warps)
    shares = _splits(programs, length, whole.block_columns, min(wanted, most))
    return replace(whole, splits=shares)


def _in_wide_loads(accesses: Accesses) -> bool:
    """Whether what lies along the rows begins at multiples of 16 bytes. Number by number, a thread
    has four loads under way, as ptxas compiles it (32 registers): twice as many threads are
    wanted."""
    return all(divide(start * size, 16) is not None for start, size in _starts(accesses))


def _starts(accesses: Accesses) -> Iterator[tuple[Size, int]]:
    """What lies along the rows begins at multiples of these numbers of elements, of so many
    bytes."""
    inner = accesses.frame.rows[-1:]
    for access in accesses.loads.values():
        if access.offset.coefficient(*inner) == 1:
            for axis in access.offset.axes.difference(inner):
                yield access.offset.coefficient(axis), access.bytes


def _points_of_loop(accesses: Accesses) -> tuple[int, int]:
    """Of a block of a loop across memory, and its warps: in a scan, blocks wait for each other."""
    return (4096, 8) if _scans(accesses) else (2048, 4)


def _scans(accesses: Accesses) -> bool:
    return any(isinstance(i, Scan) for i in accesses.comp.body)


def _odd_rows_apart(
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
    columns = _busy_block(columns, length)
    while columns > 1 and columns * block > most_points(accesses, hints) * 32 * made.num_warps:
        columns //= 2
    splits = _splits(apart * -(-across // block), length, columns, wanted) if split else 1
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


def _widest(accesses: Accesses) -> int:
    """Bytes of an element of what is read along rows and columns."""
    points = {a.name for a in accesses.comp.axes}
    return max((a.bytes for a in accesses.loads.values() if points <= a.offset.axes), default=4)


def column_reducing(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Schedule:
    """Sums over rows beside whole rows: a fixed number of programs, each with a partial sum.
    Several short rows at a time, loads as far ahead as shared memory allows. Two programs for each
    multiprocessor, but one where rows are long and partial sums therefore large, unless many rows
    of float32 are read for them."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    block = next_pow2(extent(accesses, columns))
    count = size.hint(extent(accesses, rows), hints)
    if found := _sums_across(accesses, block, count, hints, sm_count):
        return found
    wide = _width(accesses) >= 8  # float32: tiles that run ahead fill shared memory with few rows
    dense = wide and block <= 256
    many = not wide and _widest(accesses) > 2 and count >= _MANY_ROWS * sm_count
    points = 2048 if wide and not dense else 4096
    block_rows = max(1, min(points // block, next_pow2(-(-count // sm_count))))
    most = 4 if dense else 1 if block >= 2048 and not many else 2
    short_row_warps = min(8, max(1, block_rows, block // 256))
    warps = short_row_warps if block <= 1024 else warps_of(block_rows * block)
    apart = not _aligned(accesses) and _in_words(accesses)
    if apart and block <= _NARROW:
        block_rows = min(block_rows, max(1, _NARROW_POINTS // block))
        warps, most = 4, 4
    elif not wide and block in RUN_AHEAD and count > most * sm_count * block_rows:
        block_rows, warps, most = RUN_AHEAD[block]
    programs = most * sm_count
    programs = _equal_shares(-(-count // block_rows), programs, programs * 9 // 10)
    made = Schedule("persistent", rows, columns, block_rows, block, warps, programs)
    several = count > programs * block_rows and not dense and not apart
    ahead = (4, 3) if several else ()  # two are slower than none
    deeper = (replace(made, stages=n) for n in ahead)
    return next((s for s in deeper if valid(s, accesses)), made)


def _sums_across(
    accesses: Accesses, block: int, count: int, hints: Mapping[str, int], sm_count: int
) -> Schedule | None:
    """Of `count` rows that lie beside each other in memory: as many at a time as fill sectors of
    it. None for others, and for many columns. Loads do not run ahead: they would be copied number
    by number."""
    along, across = _traffic(accesses, hints)
    how = next((how for most, how in _SUMS_ACROSS.items() if block <= most), None)
    if how is None or across <= along:
        return None
    points, warps, each = how
    block_rows = max(1, points // block)
    programs = _equal_shares(-(-count // block_rows), each * sm_count, each * sm_count * 9 // 10)
    frame = accesses.frame
    return Schedule("persistent", frame.rows, frame.columns, block_rows, block, warps, programs)


def _in_words(accesses: Accesses) -> bool:
    """Whether what is read along the columns has 4 bytes and more: such loads may run ahead."""
    columns = set(accesses.frame.columns)
    return all(a.bytes >= 4 for a in accesses.loads.values() if a.offset.axes & columns)


def _equal_shares(blocks: int, most: int, least: int) -> int:
    """As many programs as have equally many blocks, so that none needs masks; `most` where no
    number above `least` divides."""
    if blocks <= most:
        return max(1, blocks)
    return next((p for p in range(most, least, -1) if blocks % p == 0), most)


def _rows_per_program(
    accesses: Accesses, block: int, count: int, hints: Mapping[str, int], sm_count: int
) -> int:
    """Short rows share a program, as long as there are programs for all multiprocessors."""
    lone = _moves_much(accesses, hints) and not _aligned(accesses)
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
    several = _moves_much(accesses, hints) and _aligned(accesses)
    return max(1, points // 256) if several else 1


def _points_of_row(accesses: Accesses) -> int:
    """Of a thread, in a row that several warps hold. At every reduction they wait for each other,
    and programs of fewer warps for fewer others."""
    if _widest(accesses) > 2:
        return 16
    reduces = (i for i in accesses.comp.body if isinstance(i, Reduce))
    often = sum(_ROUNDS.get(i.monoid, 1) for i in reduces) > _FEW_REDUCTIONS
    points = 64 if often and _width(accesses) <= 2 else 32
    while points > 16 and points * most_live(accesses.comp) > _HELD_VALUES:
        points //= 2
    return points


def _splits(programs: int, length: int, block: int, wanted: int) -> int:
    """Shares of the columns that make `wanted` programs, unless half as many are there already."""
    if 2 * programs >= wanted:
        return 1
    most, blocks = min(wanted // max(1, programs), 1024), -(-length // block)
    return _nearest_shares(blocks, most)


def _nearest_shares(blocks: int, wanted: int) -> int:
    """A divisor of `blocks` from two thirds to three halves of `wanted`: the next above, as more
    programs keep more loads under way, or the next below."""
    if blocks <= wanted:
        return max(1, blocks)
    above = range(wanted, min(blocks, wanted * 3 // 2) + 1)
    near = (*above, *range(wanted, wanted * 2 // 3, -1))
    return next((p for p in near if blocks % p == 0), wanted)
