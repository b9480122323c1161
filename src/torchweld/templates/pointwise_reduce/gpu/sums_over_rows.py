"""Default tiles of sums over rows beside whole rows, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir import size
from torchweld.ir.access import Accesses
from torchweld.templates.pointwise_reduce.gpu.reads import (
    are_rows_aligned,
    bytes_per_column,
    in_words,
    traffic,
    widest_element,
)
from torchweld.templates.pointwise_reduce.gpu.schedule import (
    Schedule,
    extent,
    next_pow2,
    valid,
    warps_of,
)
from torchweld.templates.pointwise_reduce.gpu.shares import equal_shares

# Of sums over rows beside whole rows, where one tensor of float32 is read: so many rows for each
# multiprocessor are worth a second program with partial sums of its own. Two results and a map, us
# on an H200: 4000 rows of 3000 97 and 82, of 1600 54 and 44, 300 rows of 4096 13 and 15.
_MANY_ROWS = 8
# Rows, warps and programs for each multiprocessor of sums over rows of so many columns, of 16 bits,
# whose loads run ahead. With two rows for each of eight warps Triton moves the tile between layouts
# in each step: 54 instructions for each of 256 columns in place of 23, and registers for one
# program in place of two (H100, 65536 rows: 99 us, where 134 MB take 44).
RUN_AHEAD = {256: (16, 16, 2), 512: (4, 2, 4)}
# Sums over rows of so few columns, which begin anywhere and have 4 bytes and more: points of a
# program. Copies that run ahead are of one element each then, and tiles take registers for their
# places (sm_90: 236 for 16 points a thread, which leaves 8 warps to a multiprocessor; 64 for 8 that
# are loaded as they are needed). 96000 rows of 33, three steps ahead, took 93 us on an H200.
_NARROW, NARROW_POINTS = 256, 1024
# Sums over rows beside whole rows, where memory runs along the rows: of up to so many columns, the
# points of a program, its warps, programs for each multiprocessor. `x = s * (a * r).sum(0)` with
# `(a * x).sum(1)`, us on an H200, as other rows are and so, in float32 and bfloat16: 509 x 24593 68
# and 20, 25 and 12; 60 x 200001 125 and 21, 12 and 14; 128 x 100000 20 and 17, 19 and 12;
# 1000 x 40000 88 and 64, 87 and 52.
_SUMS_ACROSS = {256: (4096, 4, 4), 1024: (8192, 8, 2)}


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
    wide = bytes_per_column(accesses) >= 8  # tiles that run ahead fill shared memory with few rows
    dense = wide and block <= 256
    many = not wide and widest_element(accesses) > 2 and count >= _MANY_ROWS * sm_count
    points = 2048 if wide and not dense else 4096
    block_rows = max(1, min(points // block, next_pow2(-(-count // sm_count))))
    most = 4 if dense else 1 if block >= 2048 and not many else 2
    short_row_warps = min(8, max(1, block_rows, block // 256))
    warps = short_row_warps if block <= 1024 else warps_of(block_rows * block)
    apart = not are_rows_aligned(accesses) and in_words(accesses)
    if apart and block <= _NARROW:
        block_rows = min(block_rows, max(1, NARROW_POINTS // block))
        warps, most = 4, 4
    elif not wide and block in RUN_AHEAD and count > most * sm_count * block_rows:
        block_rows, warps, most = RUN_AHEAD[block]
    programs = most * sm_count
    programs = equal_shares(-(-count // block_rows), programs, programs * 9 // 10)
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
    along, across = traffic(accesses, hints)
    how = next((how for most, how in _SUMS_ACROSS.items() if block <= most), None)
    if how is None or across <= along:
        return None
    points, warps, each = how
    block_rows = max(1, points // block)
    programs = equal_shares(-(-count // block_rows), each * sm_count, each * sm_count * 9 // 10)
    frame = accesses.frame
    return Schedule("persistent", frame.rows, frame.columns, block_rows, block, warps, programs)
