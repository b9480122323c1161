"""How a kernel is tiled on a GPU: a frozen record, one predicate of validity, default heuristics.

Every kernel works on tiles of [block_rows, block_columns] points. Three forms:

    grid        pointwise: the grid covers both dimensions
    persistent  one program holds whole rows (all columns in one block) in registers
    looped      one program runs over its rows' columns in blocks, as often as the reductions depend
    on each other

A block of rows is contiguous in their linear index, over all their axes; or over the last one, and
each program has one point of the others (`apart`).

`splits` > 1: with reductions over columns, programs that share the columns of a row; with
reductions over rows (weight gradients), programs that share the rows. Each writes partial results
and a second kernel merges them in a fixed order, so that results repeat from run to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torchweld.core.errors import InvalidIR
from torchweld.ir import size
from torchweld.ir.access import Access, Accesses, addressed, linear
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import (
    Buffer,
    Comp,
    Op,
    Scan,
    Store,
    map_axes,
    store_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.passes import can_share_rows, stages
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import Size, divide, product
from torchweld.targets.target import Target

PERSISTENT_COLUMNS = 16384  # beyond, rows held by 16 warps spill (measured on sm_90)
MAX_GRID_Y = 65535
MAX_STAGES = 4
MAX_STAGED_BYTES = 64 << 10  # of shared memory, which leaves room for other blocks on any GPU
SMALL = 4 << 20  # points: a few microseconds
LARGE = 16 << 20  # points: below, a last wave of large blocks leaves multiprocessors idle
MOST_PADDED = 15 / 16  # of the lanes of a row's blocks are at work, at least
OUTER_BYTES = 8192  # of a tile whose rows are contiguous in memory, and have few columns
# Of rows that are contiguous in memory: so many are reduced by one warp, whose threads have 16
# bytes along the rows, and sums of their own. Several warps would meet in shared memory.
WARP_COLUMNS = 32
# Of rows whose last axis has an odd length, in blocks of it: points of a program, the share of its
# lanes that are at work, and elements that a thread loads, each alone, at a time.
LEAST_APART = 512
LEAST_INSIDE = 3 / 4
MOST_LOADED = 64
NARROW_POINT = 4  # bytes: one that is read and one that is written, of 16 bits
_FEW_ACCESSES = 4  # of a tile of which each thread has 32 points: more would not fit in registers
_FEW_TILES = 12
# Elements of tiles for each thread. Windows of 5 x 5 with twice as many took 1.05 to 1.3 times as
# long on an H100, windows of 3 x 3 with half of them 0.9 to 1.2 times.
_MOST_WAITING = 176
_SHORT_RUN = 4  # of elements that are contiguous across a tile; below, nothing is transposed
LOOPED_COLUMNS = 2048  # of a block: at 8 elements for each thread, enough threads hide the loads
THREAD_BYTES = 32  # that a thread of a loop asks for at a time: two loads
# Stages of a loop, as shared memory allows, with programs on each multiprocessor that keep memory
# busy.
AHEAD = ((4, 2), (3, 2), (1, 4))
# Rows, warps and programs for each multiprocessor of sums over rows of so many columns, of 16 bits,
# whose loads run ahead. With two rows for each of eight warps Triton moves the tile between layouts
# in each step: 54 instructions for each of 256 columns in place of 23, and registers for one
# program in place of two (H100, 65536 rows: 99 us, where 134 MB take 44).
RUN_AHEAD = {256: (16, 16, 2), 512: (4, 2, 4)}
ROW_BYTES = 256 << 10  # of a row for each multiprocessor, that stay in cache between two passes
MAX_POINTS_PER_THREAD = 128
MAX_BLOCK = 8192  # of a loop's columns
# Rows that a multiprocessor holds one at a time, of so many multiply-adds each, are shared where a
# quarter of the device would idle in the last wave: 160 rows of 6138 maxima of four tanh take an
# H100, whose multiprocessors are 132, 20.6 us in two waves.
_HEAVY_ROW, _ALONE, _IDLE = 1 << 18, 4096, 1 / 4
MIN_PIECE = 2048  # of columns; blocks of fewer have too little to load at a time
COMBINABLE = {"add": ("i32", "i64", "f32", "f64"), "max": ("i32", "i64"), "min": ("i32", "i64")}


@dataclass(frozen=True, slots=True)
class Schedule:
    """`rows` and `columns`: the axes (of `addressed(comp)`) that make up each tile dimension,
    outermost first. `apart`: row axes before them, of which each program has one point."""

    form: Literal["grid", "persistent", "looped"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    block_rows: int
    block_columns: int
    num_warps: int
    splits: int = 1
    stages: int = 1  # of a loop over blocks: loads run that many steps ahead
    apart: tuple[str, ...] = ()

    @property
    def points_per_thread(self) -> int:
        return self.block_rows * self.block_columns // (32 * self.num_warps)


def supports(comp: Comp, buffers: Mapping[str, Buffer]) -> str | None:
    """None if a CUDA kernel can be made of `comp`; else why not."""
    if frame_of(comp) is None:
        return "its reductions share no rows"
    return next(
        filter(None, (_uncombinable(comp, buffers, s) for s in comp.stores)), None
    ) or _bad_column_reduction(addressed(comp, buffers))


def schedule(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    table: Target,
    hints: Mapping[str, int] | None = None,
) -> Schedule:
    """The default schedule for a device. `hints`: typical values of symbols.

    Raises InvalidIR where `supports` gives a reason.
    """
    reason = supports(comp, buffers)
    if reason is not None:
        raise InvalidIR(f"{comp.name} cannot be a CUDA kernel: {reason}")
    return default(addressed(comp, buffers, hints), hints or {}, table.units)


def candidates(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Iterator[Schedule]:
    """The default first, then at most five neighbours: what a tuner may time."""
    first = default(accesses, hints, sm_count)
    seen = set()
    for change in _neighbours(first):
        near = replace(first, **change)
        if near not in seen and valid(near, accesses):
            seen.add(near)
            yield near


def _neighbours(s: Schedule) -> Iterator[dict[str, int]]:
    """Other warps and tiles; for sums over rows, other numbers of steps that loads run ahead in
    place of some."""
    dimension = "block_rows" if s.rows else "block_columns"
    sums_over_rows = s.form == "persistent" and s.splits > 1
    tiles = ((1, 1), (1, 2), (1, 0.5), (2, 2)) + (((2, 1), (0.5, 1)) if not sums_over_rows else ())
    for points, warps in tiles:
        tile = int(getattr(s, dimension) * points)
        yield {dimension: tile, "num_warps": int(s.num_warps * warps)}
    if sums_over_rows:
        yield from ({"stages": n} for n in (1, 2, 3) if n != s.stages)


def valid(schedule: Schedule, accesses: Accesses) -> bool:
    """Whether codegen can make a correct kernel of this: the only place where that is decided."""
    tile_ok = (
        1 <= schedule.num_warps <= 32
        and 1 <= schedule.stages <= MAX_STAGES
        and (schedule.stages == 1 or _staged_bytes(schedule, accesses) <= MAX_STAGED_BYTES)
        and schedule.block_rows >= 1
        and schedule.points_per_thread <= MAX_POINTS_PER_THREAD
        and set(schedule.apart + schedule.rows + schedule.columns) == set(accesses.comp.extents)
        and _apart_fits(schedule, accesses)
    )
    return tile_ok and _form_fits(schedule, accesses)


def _apart_fits(schedule: Schedule, accesses: Accesses) -> bool:
    """They are the last dimension of the grid; rows and partial results are in their order."""
    points, reduces = extent(accesses, schedule.apart), accesses.frame.columns
    few = isinstance(points, int) and points <= MAX_GRID_Y and not _scatters(accesses)
    in_order = schedule.apart + schedule.rows == accesses.frame.rows
    return not schedule.apart or bool(
        few and in_order and reduces and not accesses.frame.column_reductions
    )


def default(
    accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool = True
) -> Schedule:
    """The first guess. `split`: whether a second kernel may merge partial results."""
    frame = accesses.frame
    if frame.column_reductions:
        return _column_reducing(accesses, hints, sm_count)
    if frame.columns:
        return _reducing(accesses, hints, sm_count, split)
    return _in_registers(_pointwise(accesses, hints, sm_count), accesses, hints)


def _in_registers(found: Schedule, accesses: Accesses, hints: Mapping[str, int]) -> Schedule:
    """With fewer points a thread, where so many tiles are read and written that they wait for each
    other in registers (windows)."""
    most = _most_points(accesses, hints)
    while found.points_per_thread > most:
        wide = found.block_columns > 32 * found.num_warps or found.block_rows == 1
        halved = "block_columns" if wide else "block_rows"
        found = replace(found, **{halved: getattr(found, halved) // 2})
    return found


def _most_points(accesses: Accesses, hints: Mapping[str, int]) -> int:
    """Of a thread, for that."""
    points = size.hint(product(a.extent for a in accesses.comp.axes), hints)
    tiles = sum(8 * accesses.touched(a, hints) >= points * a.bytes for a in accesses.all)
    return max(1, _MOST_WAITING // tiles) if tiles > _FEW_TILES else MAX_POINTS_PER_THREAD


def extent(accesses: Accesses, axes: tuple[str, ...]) -> Size:
    return product(accesses.comp.extent(a) for a in axes)


def columns_first(schedule: Schedule, accesses: Accesses) -> bool:
    """Whether programs of a grid follow each other along rows, as memory does: 5 % faster. The
    second dimension of a grid is short."""
    rows, most = extent(accesses, schedule.rows), MAX_GRID_Y * schedule.block_rows
    turns = any(
        a.offset.coefficient(schedule.rows[-1]) == 1 and a.offset.axes & set(schedule.columns)
        for a in accesses.all
        if schedule.rows
    )
    return bool(schedule.rows) and not turns and isinstance(rows, int) and rows <= most


def next_pow2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _uncombinable(comp: Comp, buffers: Mapping[str, Buffer], store: Store) -> str | None:
    """There are no atomics for it; or a repeated store would combine twice."""
    if store.combine is None:
        return None
    dtype = buffers[store.buffer].dtype.name
    if dtype not in COMBINABLE.get(store.combine, ()):
        return f"no atomic {store.combine} of {dtype} on a GPU"
    axes = value_axes(comp.body)
    covered = map_axes(store.index).union(*(axes[v] for v in store_operands(store)))
    if covered != {a.name for a in comp.axes} or len(comp.stores) > 1:
        return "a scatter shares its kernel"
    return None


def _bad_column_reduction(accesses: Accesses) -> str | None:
    if not accesses.frame.column_reductions:
        return None
    columns = extent(accesses, accesses.frame.columns)
    if not isinstance(columns, int) or columns > PERSISTENT_COLUMNS:
        return f"rows of {columns} columns and sums over rows do not fit into registers together"
    tuples = ("welford", "argmax", "argmin", "logsumexp")
    if any(accesses.comp.body[v].monoid in tuples for v in accesses.frame.column_reductions):
        return "a reduction over rows has several results"
    if any(a.refs for a in accesses.all):
        return "it has a reduction over rows and computed indices"
    return None


def _staged_bytes(schedule: Schedule, accesses: Accesses) -> int:
    """Shared memory for the tiles of tensors that are read along a loop."""
    rows, columns = set(accesses.frame.rows), set(accesses.frame.columns)
    last = set(accesses.frame.columns[-1:])
    loop, across = (rows, columns) if accesses.frame.column_reductions else (last, last)
    reads = ((a.bytes, a.offset.axes) for a in accesses.loads.values())
    width = sum(n for n, axes in reads if loop & axes and across & axes)
    return (schedule.stages - 1) * width * schedule.block_rows * schedule.block_columns


def _form_fits(schedule: Schedule, accesses: Accesses) -> bool:
    columns = extent(accesses, schedule.columns)
    reduces = bool(accesses.frame.columns)
    if schedule.form == "grid":
        narrow = not isinstance(columns, int) or columns <= MAX_GRID_Y * schedule.block_columns
        narrow = narrow or columns_first(schedule, accesses)
        return not reduces and schedule.splits == 1 and (narrow or not schedule.rows)
    if schedule.form == "persistent":
        fits = isinstance(columns, int) and columns <= schedule.block_columns
        return reduces and fits and (schedule.splits == 1 or bool(accesses.frame.column_reductions))
    alone = not accesses.frame.column_reductions
    shared = schedule.splits == 1 or can_share_rows(accesses.comp, accesses.frame)
    return reduces and alone and shared


def _rows_contiguous(accesses: Accesses, hints: Mapping[str, int]) -> bool:
    """Whether the tensors that have columns are contiguous along a row axis rather than along the
    last column; or nearer together, where they are along none."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    if not rows or not columns:
        return False
    across = max(_near_traffic(accesses, c, hints) for c in columns)
    return _near_traffic(accesses, rows[-1], hints) > across


def _near_traffic(accesses: Accesses, axis: str, hints: Mapping[str, int]) -> int:
    """Bytes that are moved by accesses whose neighbours in memory are along `axis`."""
    return sum(accesses.touched(a, hints) for a in accesses.all if axis in _nearest(a, hints))


def _nearest(access: Access, hints: Mapping[str, int]) -> list[str]:
    steps = {axis: abs(size.hint(step, hints)) for axis, step in access.offset.terms}
    return [axis for axis, step in steps.items() if step == min(steps.values())]


def _pointwise(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Schedule:
    axes = accesses.frame.rows
    if len(axes) < 2:
        return _flat(accesses, axes, hints, sm_count)
    if beside := _beside(accesses, axes):
        others = tuple(a for a in axes if a not in beside)
        return _flat(accesses, (*others, *beside), hints, sm_count)
    inner = _inner(accesses, axes, hints)
    outer = tuple(a for a in axes if a != inner)
    if (turned := _turned(accesses, inner, hints)) is not None:
        return turned
    length = accesses.comp.extent(inner)
    block = _dividing_block(length, hints)
    rows = size.hint(extent(accesses, outer), hints)
    found = Schedule("grid", outer, (inner,), min(2048 // block, next_pow2(rows)), block, 4)
    if block < 128 and (padded := _padded_block(accesses, length, outer)):
        block_rows = min(max(1, 1024 // padded), next_pow2(rows))
        found, block = Schedule("grid", outer, (inner,), block_rows, padded, 4), padded
    elif block < 128 and isinstance(length, int) and length >= 2 * LOOPED_COLUMNS:
        points = rows * size.hint(length, hints)
        block = _block_of_points(accesses, points, hints)  # those at the ends of a row have masks
        found = Schedule("grid", outer, (inner,), 1, block, block // 256)
    if block < 128 or _scatters(accesses) or not _form_fits(found, accesses):
        return _flat(accesses, (*outer, inner), hints, sm_count)
    return found


def _turned(accesses: Accesses, inner: str, hints: Mapping[str, int]) -> Schedule | None:
    """Tiles of what is contiguous along `inner` and what is across; None if nothing is. A group of
    a few channels goes on in the next."""
    axes, columns = accesses.frame.rows, (inner,)
    along = [a for a in accesses.all if a.offset.coefficient(inner) == 1]
    most = max(along, key=lambda a: accesses.touched(a, hints), default=None)
    run = columns if most is None else _run(accesses, most, axes)
    while not _is_long(extent(accesses, columns), 16) and columns != run:
        columns = run[-len(columns) - 1 :]
    outer = tuple(a for a in axes if a not in columns)
    crossing = _crossing(accesses, outer, inner, hints)
    if not crossing or not _is_long(extent(accesses, columns), 16):
        return None
    others = tuple(a for a in outer if a not in crossing)
    points = _transposed_points(accesses, hints)
    block_rows = _within(64, extent(accesses, crossing))
    block_columns = _within(points // block_rows, extent(accesses, columns))
    warps = min(8, _warps(block_rows * block_columns))
    return Schedule("grid", (*others, *crossing), columns, block_rows, block_columns, warps)


def _padded_block(accesses: Accesses, length: Size, outer: tuple[str, ...]) -> int | None:
    """The largest block in multiples of which a row has few columns more than it has, where
    something is read once for each row: an index that is divided asks for it at each point. Rows
    begin at multiples of 16 bytes."""
    along = set(outer)
    once = any(a.offset.axes and a.offset.axes <= along for a in accesses.loads.values())
    if not once or not isinstance(length, int) or length % 8:
        return None
    blocks = (1024, 512, 256)
    return next((b for b in blocks if -(-length // b) * b * MOST_PADDED <= length), None)


def _transposed_points(accesses: Accesses, hints: Mapping[str, int]) -> int:
    """Of a tile. H100, float32 of 128 images of 128 x 54 x 54, channels last to first: 200 us in
    tiles of 64 x 32, 165 of 64 x 64, 150 of 64 x 128; copies the other way 2 % faster in each."""
    points = size.hint(extent(accesses, accesses.frame.rows), hints)
    few = len(accesses.all) <= _FEW_ACCESSES
    return 8192 if points >= LARGE and few else 4096


def _inner(accesses: Accesses, axes: tuple[str, ...], hints: Mapping[str, int]) -> str:
    """The axis along which most bytes are contiguous; a long one in place of a short one if nearly
    as many are. Positions that are computed from one axis alone, as an image's that is made
    larger, are near each other along it."""
    points = product(a.extent for a in accesses.comp.axes)
    values = value_axes(accesses.comp.body)

    def gathered(axis: str) -> int:
        if not _long(accesses, axis):
            return 0
        near = (a for a in accesses.all if any(s == 1 and values[v] == {axis} for v, s in a.refs))
        return sum(a.bytes for a in near) * size.hint(points, hints)

    def traffic(axis: str) -> int:
        return accesses.contiguous_bytes(axis, hints) + gathered(axis)

    best = max(reversed(axes), key=traffic)
    longest = max((a for a in reversed(axes) if _long(accesses, a)), key=traffic, default=best)
    return longest if 2 * traffic(longest) >= traffic(best) else best


def _dividing_block(length: Size, hints: Mapping[str, int]) -> int:
    """The largest block that leaves no lane idle; where the length is not known, a full one."""
    if isinstance(length, int):
        return min(length & -length, 1024) or 1
    return min(next_pow2(size.hint(length, hints)), 512)


def _scatters(accesses: Accesses) -> bool:
    return any(s.combine for s in accesses.comp.stores)


def _beside(accesses: Accesses, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes along which elements that are combined lie side by side: an instruction of Hopper's
    adds four of them, and those of a warp are in few lines."""
    combining = zip(accesses.comp.stores, accesses.stores)
    return next((_run(accesses, a, axes) for s, a in combining if s.combine), ())


def _crossing(
    accesses: Accesses, outer: tuple[str, ...], inner: str, hints: Mapping[str, int]
) -> tuple[str, ...]:
    """The axes, outermost first, along which some access is contiguous that strides along the
    innermost: a transposition. Several where one goes on where the next ends. Of several such
    accesses the one that moves most: along it the others are walked, too."""
    far = [a for a in accesses.all if a.offset.coefficient(inner) not in (0, 1)]
    for access in sorted(far, key=lambda a: accesses.touched(a, hints), reverse=True):
        run = _run(accesses, access, outer)
        if _is_long(extent(accesses, run), _SHORT_RUN):
            return run
    return ()


def _run(accesses: Accesses, access: Access, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `axes` that an access is contiguous along, outermost first."""
    run: tuple[str, ...] = ()
    while True:
        step = extent(accesses, run)
        more = [a for a in axes if a not in run and access.offset.coefficient(a) == step]
        if not more:
            return run
        run = (more[-1], *run)


def _within(block: int, length: Size) -> int:
    """No larger a block than a short length needs."""
    return min(block, next_pow2(length)) if isinstance(length, int) else block


def _long(accesses: Accesses, axis: str) -> bool:
    return _is_long(accesses.comp.extent(axis), 16)


def _is_long(extent: Size, least: int) -> bool:
    return not isinstance(extent, int) or extent >= least


def _flat(accesses: Accesses, axes, hints: Mapping[str, int], sm_count: int) -> Schedule:
    """One dimension; blocks shrink until every multiprocessor has some."""
    points = size.hint(extent(accesses, axes), hints)
    block = _block_of_points(accesses, points, hints)
    while block > 256 and points < block * sm_count * 2:
        block //= 2
    return Schedule("grid", (), axes, 1, block, max(1, block // 256))


def _block_of_points(accesses: Accesses, points: int, hints: Mapping[str, int]) -> int:
    """A block takes 0.6 ns to start, in which the memory of an H200 moves 2.6 KB: there are more
    points in one where points have few bytes."""
    moved = sum(a.bytes * points if a.refs else accesses.touched(a, hints) for a in accesses.all)
    return 2048 if moved <= NARROW_POINT * points else 1024


def _reducing(accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool) -> Schedule:
    frame = accesses.frame
    rows, columns = frame.rows, frame.columns
    split = split and can_share_rows(accesses.comp, accesses.frame)
    if _rows_contiguous(accesses, hints):
        found = _outer(accesses, hints, sm_count, split)
        return _odd_rows_apart(found, accesses, hints, sm_count, split)
    length, count = extent(accesses, columns), size.hint(extent(accesses, rows), hints)
    fits = isinstance(length, int) and length <= PERSISTENT_COLUMNS
    idle = split and count < sm_count // 4 and size.hint(length, hints) > 4096
    if fits and split and _is_heavy(accesses, length) and _idles(count, sm_count):
        return _shared_rows(accesses, count, length, sm_count)
    if fits and not idle:
        block = next_pow2(length)
        block_rows = _rows_per_program(block, count, sm_count)
        warps = _row_warps(accesses, block_rows, block, hints)
        return Schedule("persistent", rows, columns, block_rows, block, warps)
    return _loop(accesses, count, size.hint(length, hints), sm_count, split)


def _is_heavy(accesses: Accesses, length: int) -> bool:
    """Whether a row fills a multiprocessor, and has that much work."""
    axes, columns = value_axes(accesses.comp.body), set(accesses.frame.columns)
    along = (i for i, a in zip(accesses.comp.body, axes) if isinstance(i, Op) and a & columns)
    return length > _ALONE and length * sum(TABLE[i.name].cost for i in along) >= _HEAVY_ROW


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
    apart = _read_by_piece(accesses)
    piece = _piece(accesses) if apart else MAX_BLOCK
    if MIN_PIECE <= piece < block and 2 * row_bytes <= ROW_BYTES:  # two rows at a time, then
        block, warps = piece, max(8, warps * piece // block)
    if block > length:
        block, warps = next_pow2(length), max(1, warps * next_pow2(length) // block)
    whole = Schedule("looped", rows, columns, 1, block, warps)
    if not split:
        return whole
    shared = (
        replace(whole, splits=_splits(count, length, block, programs * sm_count), stages=ahead)
        for ahead, programs in AHEAD
        if ahead == 1 or piece % block == 0 or all(a.bytes < 4 for a in apart)
    )
    found = next((s for s in shared if valid(s, accesses)), whole)
    return found if found.splits > 1 else whole


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
    small = few <= 64 or (few <= 512 and few * count <= SMALL)
    split = split and not small  # the second kernel would take longer
    while block_rows > 16 and not split and count < block_rows * 2 * sm_count:
        block_rows //= 2
    fits = isinstance(length, int) and next_pow2(length) * block_rows <= 4096
    if fits:
        block = next_pow2(length)
        warps = _warps(block * block_rows)
        if block <= WARP_COLUMNS:
            warps = min(warps, max(1, block_rows * width // (32 * 16)))
            words = block_rows * block * _width(accesses) // 4  # that wait in registers
            while block_rows > 16 and words > _MOST_WAITING * 32 * warps:
                block_rows, words = block_rows // 2, words // 2
        return Schedule("persistent", rows, columns, block_rows, block, warps)
    length = size.hint(length, hints)
    points, warps = _points_of_loop(accesses)
    block = min(next_pow2(length), max(32, points // block_rows))
    while block > 1 and block * block_rows > _most_points(accesses, hints) * 32 * warps:
        block //= 2
    wanted = (8 if _in_wide_loads(accesses) else 16) * sm_count
    splits = _splits(-(-count // block_rows), length, block, wanted) if split else 1
    return Schedule("looped", rows, columns, block_rows, block, warps, splits)


def _in_wide_loads(accesses: Accesses) -> bool:
    """Whether what lies along the rows begins at multiples of 16 bytes. Number by number, a thread
    has four loads under way, as ptxas compiles it (32 registers): twice as many threads are
    wanted."""
    inner = accesses.frame.rows[-1:]
    beside = (a for a in accesses.loads.values() if a.offset.coefficient(*inner) == 1)
    return all(
        divide(a.offset.coefficient(n) * a.bytes, 16) is not None
        for a in beside for n in a.offset.axes if n not in inner
    )


def _points_of_loop(accesses: Accesses) -> tuple[int, int]:
    """Of a block of a loop across memory, and its warps: in a scan, blocks wait for each other."""
    scans = any(isinstance(i, Scan) for i in accesses.comp.body)
    return (4096, 8) if scans else (2048, 4)


def _odd_rows_apart(
    found: Schedule, accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool
) -> Schedule:
    """Rows of several axes, the last of odd length: blocks within one step of the others. Of a
    remainder by an odd number Triton knows no two neighbours to be contiguous, and would have lanes
    lie along the columns, across memory."""
    *outer, inner = found.rows
    across, length = accesses.comp.extent(inner), extent(accesses, found.columns)
    odd = isinstance(across, int) and across % 2 == 1
    if not outer or not odd or not _divided(accesses, found):
        return found
    block = _odd_block(found, across)
    made = replace(found, rows=(inner,), apart=tuple(outer), block_rows=block)
    if found.form == "looped":
        made = _loop_apart(made, accesses, hints, sm_count, split)
    worth = made.block_rows * size.hint(length, hints) >= LEAST_APART
    return made if worth and valid(made, accesses) else found


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
    while split and block > 32 and 2 * apart * -(-across // block) < wanted:
        block //= 2
    columns = min(next_pow2(length), max(32, _points_of_loop(accesses)[0] // block))
    while columns > 1 and columns * block > _most_points(accesses, hints) * 32 * made.num_warps:
        columns //= 2
    splits = _splits(apart * -(-across // block), length, columns, wanted) if split else 1
    return replace(made, block_rows=block, block_columns=columns, splits=splits)


def _divided(accesses: Accesses, schedule: Schedule) -> bool:
    """Whether something along the columns is read at places that need each of the rows' axes."""
    columns = set(schedule.columns)
    along = (a.offset for a in accesses.loads.values() if not columns.isdisjoint(a.offset.axes))
    return any(linear(accesses, offset, schedule.rows) is None for offset in along)


def _widest(accesses: Accesses) -> int:
    """Bytes of an element of what is read along rows and columns."""
    points = {a.name for a in accesses.comp.axes}
    return max((a.bytes for a in accesses.loads.values() if points <= a.offset.axes), default=4)


def _column_reducing(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Schedule:
    """Sums over rows beside whole rows: a fixed number of programs, each with a partial sum.
    Several short rows at a time, loads as far ahead as shared memory allows. Two programs for each
    multiprocessor, but one where rows are long and partial sums therefore large."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    block = next_pow2(extent(accesses, columns))
    count = size.hint(extent(accesses, rows), hints)
    wide = _width(accesses) >= 8  # float32: tiles that run ahead fill shared memory with few rows
    dense = wide and block <= 256
    points = 2048 if wide and not dense else 4096
    block_rows = max(1, min(points // block, next_pow2(-(-count // sm_count))))
    most = 4 if dense else 1 if block >= 2048 else 2
    short_row_warps = min(8, max(1, block_rows, block // 256))
    warps = short_row_warps if block <= 1024 else _warps(block_rows * block)
    if not wide and block in RUN_AHEAD and count > most * sm_count * block_rows:
        block_rows, warps, most = RUN_AHEAD[block]
    programs = most * sm_count
    programs = _equal_shares(-(-count // block_rows), programs, programs * 9 // 10)
    made = Schedule("persistent", rows, columns, block_rows, block, warps, programs)
    several = count > programs * block_rows and not dense
    ahead = (4, 3) if several else ()  # two are slower than none
    deeper = (replace(made, stages=n) for n in ahead)
    return next((s for s in deeper if valid(s, accesses)), made)


def _equal_shares(blocks: int, most: int, least: int) -> int:
    """As many programs as have equally many blocks, so that none needs masks; `most` where no
    number above `least` divides."""
    if blocks <= most:
        return max(1, blocks)
    return next((p for p in range(most, least, -1) if blocks % p == 0), most)


def _rows_per_program(block: int, count: int, sm_count: int) -> int:
    """Short rows share a program, as long as there are programs for all multiprocessors."""
    rows = max(1, 1024 // block)
    while rows > 1 and count < rows * sm_count * 2:
        rows //= 2
    return rows


def _row_warps(accesses: Accesses, block_rows: int, block: int, hints: Mapping[str, int]) -> int:
    """Rows of up to 1024 columns belong to one warp, which reduces without shared memory, unless
    they move so much that the memory is what is waited for (8 bytes for each point)."""
    points = block_rows * block
    if block > 1024:
        return _warps(points)
    traffic = sum(accesses.touched(a, hints) for a in accesses.all)
    count = size.hint(extent(accesses, accesses.frame.rows + accesses.frame.columns), hints)
    return max(1, points // 256) if traffic >= 8 * count else 1


def _warps(points: int) -> int:
    return min(16, max(1, next_pow2(points) // 512))


def _splits(programs: int, length: int, block: int, wanted: int) -> int:
    """Shares of the columns that make `wanted` programs, unless half as many are there already."""
    if 2 * programs >= wanted:
        return 1
    most = min(wanted // max(1, programs), 1024)
    return _equal_shares(-(-length // block), most, most * 2 // 3)
