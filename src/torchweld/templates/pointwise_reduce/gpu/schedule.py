"""How a kernel is tiled on a GPU: a frozen record, and one predicate of validity. Defaults are
in default.py.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torchweld.ir.access import Accesses, addressed, sorts
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import (
    Buffer,
    Comp,
    Store,
    map_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.passes import can_share_rows
from torchweld.ir.size import Size, product

REGISTER_BYTES = 256 << 10  # of a multiprocessor, since sm_30
_PACKED = 1.5  # live values of a row for each of its registers: some are packed, or loaded again
PERSISTENT_COLUMNS = 16384  # beyond, rows held by 16 warps spill (measured on sm_90)
MAX_GRID_Y = 65535
MAX_STAGES = 4
MAX_STAGED_BYTES = 64 << 10  # of shared memory, which leaves room for other blocks on any GPU
LOOPED_COLUMNS = 2048  # of a block: at 8 elements for each thread, enough threads hide the loads
MAX_POINTS_PER_THREAD = 128
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
    few = isinstance(points, int) and points <= MAX_GRID_Y and not scatters(accesses)
    in_order = schedule.apart + schedule.rows == accesses.frame.rows
    return not schedule.apart or bool(
        few and in_order and reduces and not accesses.frame.column_reductions
    )


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


def live_bytes(columns: int, live: int) -> float:
    """Of registers, for a whole row of float32 of which `live` values wait for each column."""
    return 4 * next_pow2(columns) * live / _PACKED


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
    alone = not accesses.frame.column_reductions and not sorts(accesses.comp)
    shared = schedule.splits == 1 or can_share_rows(accesses.comp, accesses.frame)
    return reduces and alone and shared


def scatters(accesses: Accesses) -> bool:
    return any(s.combine for s in accesses.comp.stores)


def warps_of(points: int, each: int = 16) -> int:
    """`each`: points of a thread."""
    return min(16, max(1, next_pow2(points) // (32 * each)))
