"""Operations that a GPU computes by a short way and, for few arguments, by a long one behind a
branch: quotients and roots that are rounded as IEEE 754 says, sines. A thread takes one branch
after the other, and each time waits for what is behind it, so other warps have to fill in. Where a
point has many, a thread has few points: fewer registers, more warps, and code that fits in the
cache of instructions (long ways are there once for each point)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Op, value_axes
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule

# Sines have three times the code of quotients.
_ALWAYS = {"sin": 2, "cos": 2, "tan": 2, "pow": 2, "lgamma": 2, "atan2": 1, "hypot": 1}
_PRECISE = ("div", "sqrt", "reciprocal", "sigmoid", "tanh", "log1p", "sinh", "acosh", "asinh")
_OF_FLOAT32 = {**_ALWAYS, **dict.fromkeys(_PRECISE, 1)}
# Of a point: they hide behind its memory. In tiles across memory, where threads have many points,
# two do not: means of sinh of roots, 37 x 149 x 131 and 16 x 60 x 40 x 40, us on an H200, 5.5 and
# 10.6 with 32 and 64 points for each thread, 3.4 and 5.6 with a quarter.
_FEW, _FEW_OF_TILES = 2, 1
# Of a thread. Gradients of option prices (nine quotients and a root), as ptxas compiles them for
# sm_90: eight points take 190 registers, which leaves 8 warps to a multiprocessor, two take 59: 32.
# Gradients of distances on a sphere (four sines, a root, a quotient): 32 points are 253 KB of code,
# which took 244 us on an H200; two are 22 KB.
MOST = 24
# Whole rows along memory, us on an H200, float32: entropies of 157 and 333 columns with four
# branches, 25 million points, 282 and 228 with 4 rows for 8 warps and 2 rows for 4, 176 and 164
# with one row for 2. Across memory, with four branches in tiles of 8 columns, 128 x 8 x 300: 10.7
# with 8 warps for many rows, 4.9 with 32 rows first. Tiles of 16 rows of 149 columns: gradients
# with ten branches 61 with 8 warps and 37 with 16, sums with four 18 and 12; but softmaxes of 96
# columns with four, whose threads have 8 points in 8 warps, 14 and 16.
_MOST_WARPS, _MANY_WARPS = 8, 16  # many: where nothing else can be less
_FEW_POINTS = 8
_LINE_OF_ROWS = 16  # rows across memory, of 64 bytes


def thinned(schedule: Schedule, accesses: Accesses) -> Schedule:
    """`schedule` with no more points for each thread than their branches allow: more warps for a
    tile first, since a program takes time to start, or fewer whole rows."""
    each, across = _of_a_point(schedule, accesses), _is_across(schedule, accesses)
    if each <= (_FEW_OF_TILES if across and schedule.form == "persistent" else _FEW):
        return schedule
    while schedule.points_per_thread > 1 and schedule.points_per_thread * each > MOST:
        smaller = _smaller(schedule, across)
        if smaller == schedule:
            break
        schedule = smaller
    return schedule


def _of_a_point(schedule: Schedule, accesses: Accesses) -> int:
    """The branches of each point of a tile: of what varies along its rows and its columns. Where a
    tile is one row, what varies along the columns alone is computed for each row, too."""
    rows, columns = set(schedule.rows), set(schedule.columns)
    for_each_row = not rows or (schedule.form == "grid" and schedule.block_rows == 1)
    return _branches(accesses, lambda axes: axes & columns and (for_each_row or axes & rows))


def of_each(accesses: Accesses) -> int:
    """The branches of all that a kernel computes, at one point."""
    return _branches(accesses, lambda axes: True)


def of_a_row(accesses: Accesses, rows: Collection[str]) -> int:
    """The branches of what varies along `rows` alone."""
    return _branches(accesses, lambda axes: axes and axes <= set(rows))


def _branches(accesses: Accesses, counts: Callable[[frozenset[str]], object]) -> int:
    """Of operations whose axes count."""
    known = _OF_FLOAT32 if any(a.bytes > 2 for a in accesses.stores) else _ALWAYS
    body = accesses.comp.body
    return sum(
        known.get(instr.name, 0)
        for instr, axes in zip(body, value_axes(body), strict=True)
        if isinstance(instr, Op) and instr.dtype.is_float and counts(axes)
    )


def _is_across(schedule: Schedule, accesses: Accesses) -> bool:
    """Whether rows of a whole tile are neighbours in memory."""
    inner, points = schedule.rows[-1:], {a.name for a in accesses.comp.axes}
    tiles = (a.offset for a in accesses.loads.values() if points <= a.offset.axes)
    return bool(inner) and any(offset.coefficient(*inner) == 1 for offset in tiles)


def _smaller(s: Schedule, across: bool) -> Schedule:
    """With half as many points for each thread, if it can be."""
    if s.form == "persistent" and s.splits == 1:
        return _fewer_rows(s, across)
    if s.num_warps < (_MANY_WARPS if s.form == "persistent" else _MOST_WARPS):
        return replace(s, num_warps=2 * s.num_warps)
    wide = s.block_columns > 32 * s.num_warps or s.block_rows == 1
    if s.form == "looped" or (s.form == "grid" and wide):
        return replace(s, block_columns=max(1, s.block_columns // 2))
    least = _LINE_OF_ROWS if across else 1
    return replace(s, block_rows=max(min(least, s.block_rows), s.block_rows // 2))


def _fewer_rows(s: Schedule, across: bool) -> Schedule:
    """Of tiles of whole rows. Warps that share one meet in shared memory."""
    lanes, least, most = (32, _LINE_OF_ROWS, _MANY_WARPS) if across else (1, 1, _MOST_WARPS)
    if s.block_rows > lanes:
        return replace(s, block_rows=s.block_rows // 2)
    if s.num_warps < _MOST_WARPS:
        return replace(s, num_warps=2 * s.num_warps)
    if s.block_rows > least:
        return replace(s, block_rows=s.block_rows // 2)
    several = s.points_per_thread > _FEW_POINTS
    return replace(s, num_warps=2 * s.num_warps) if several and s.num_warps < most else s
