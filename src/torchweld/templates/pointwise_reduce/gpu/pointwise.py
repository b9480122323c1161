"""Default tiles of pointwise kernels on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir import size
from torchweld.ir.access import Access, Accesses
from torchweld.ir.nodes import value_axes
from torchweld.ir.size import Size, product
from torchweld.templates.pointwise_reduce.gpu.branches import of_a_row
from torchweld.templates.pointwise_reduce.gpu.schedule import (
    LOOPED_COLUMNS,
    Schedule,
    _form_fits,
    extent,
    next_pow2,
    scatters,
    warps_of,
)

LARGE = 16 << 20  # points: below, a last wave of large blocks leaves multiprocessors idle
MOST_PADDED = 15 / 16  # of the lanes of a row's blocks are at work, at least
# The same where a row has so many quotients and roots of its own (branches.py): at each point they
# would take longer than what idle lanes leave out.
PADDED_FOR_ROWS, BRANCHES_OF_ROWS = 3 / 4, 3
NARROW_POINT = 4  # bytes: one that is read and one that is written, of 16 bits
_FEW_ACCESSES = 4  # of a tile of which each thread has 32 points: more would not fit in registers
# Points of a tile that reads every second element, or further apart, along its rows. With more
# points a thread's loads are further apart: averages of 2 x 2 of 16 x 64 x 256 x 256 took an H200
# 145 us in tiles of 2048 points, 90 of 1024, 79 of 512, in bfloat16 141, 74 and 45.
_POINTS_APART = 512
_SHORT_RUN = 4  # of elements that are contiguous across a tile; below, nothing is transposed


def pointwise(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Schedule:
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
    points = max(_POINTS_APART, block) if _reads_apart(accesses, inner, hints) else 2048
    found = Schedule("grid", outer, (inner,), min(points // block, next_pow2(rows)), block, 4)
    if block < 128 and (padded := _padded_block(accesses, length, outer)):
        block_rows = min(max(1, 1024 // padded), next_pow2(rows))
        found, block = Schedule("grid", outer, (inner,), block_rows, padded, 4), padded
    elif block < 128 and isinstance(length, int) and length >= 2 * LOOPED_COLUMNS:
        points = rows * size.hint(length, hints)
        block = _block_of_points(accesses, points, hints)  # those at the ends of a row have masks
        found = Schedule("grid", outer, (inner,), 1, block, block // 256)
    if block < 128 or scatters(accesses) or not _form_fits(found, accesses):
        return _flat(accesses, (*outer, inner), hints, sm_count)
    return found


def _reads_apart(accesses: Accesses, inner: str, hints: Mapping[str, int]) -> bool:
    steps = (size.hint(a.offset.coefficient(inner), hints) for a in accesses.loads.values())
    return any(abs(step) > 1 for step in steps)


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
    warps = min(8, warps_of(block_rows * block_columns))
    return Schedule("grid", (*others, *crossing), columns, block_rows, block_columns, warps)


def _padded_block(accesses: Accesses, length: Size, outer: tuple[str, ...]) -> int | None:
    """The largest block in multiples of which a row has few columns more than it has, where
    something is read once for each row: an index that is divided asks for it at each point. Rows
    begin at multiples of 16 bytes."""
    along = set(outer)
    once = any(a.offset.axes and a.offset.axes <= along for a in accesses.loads.values())
    widths = [a.bytes for a in accesses.all if not a.offset.axes <= along]
    if not once or not widths or not isinstance(length, int):
        return None
    padded = {b: -(-length // b) * b for b in (1024, 512, 256)}
    narrowest = min(widths)
    if length * narrowest % 16 == 0 and of_a_row(accesses, outer) >= BRANCHES_OF_ROWS:
        least = min(padded, key=padded.__getitem__)
        return least if padded[least] * PADDED_FOR_ROWS <= length else None
    if length % 8:
        return None
    return next((b for b, points in padded.items() if points * MOST_PADDED <= length), None)


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
