"""Products of matrices on Hopper's asynchronous units: what the form "gluon" can serve, and how it
is tiled.

One warp has the TMA unit copy tiles of the factors into a ring of `stages` in shared memory; groups
of four warps multiply what has arrived, then compute the epilogue on their part of the tile. The
columns of a tile are one or two parts of a power of two, each with accumulators of its own, so that
the epilogue has few live values at a time and a tile may have 192 columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from torchweld.core.dtypes import DType
from torchweld.core.once import once
from torchweld.ir import size
from torchweld.ir.access import Access, Accesses, linear
from torchweld.ir.contraction import (
    Contraction,
    Product,
    bad_combining,
    bad_factors,
    column_sums,
)
from torchweld.ir.nodes import (
    Const,
    Index,
    Instr,
    Load,
    Op,
    Store,
    Value,
    needed,
    store_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import Size, known_factor, product
from torchweld.targets.target import Target
from torchweld.templates.gemm.concatenation import Piece, pieces_of
from torchweld.templates.gemm.hopper.images import (
    best_box,
    image,
    image_load,
    places,
    weight,
)
from torchweld.templates.gemm.hopper.windows import TMA_BYTES, Window, window
from torchweld.templates.gemm.schedule import ProductSchedule

# Columns of a tile, by accumulator.
PARTS = {32: (32,), 64: (64,), 128: (128,), 192: (128, 64), 256: (256,)}
SHARED_BYTES = (227 << 10) - 2048  # of one block, less barriers and what Triton keeps there
# Accumulators of a thread, at most; the second number beside wide indices (dropout).
MOST_TOGETHER = (128, 64)
MOST_IN_TURN = (192, 96)  # with pingpong, whose epilogue is a loop over short slices
SLICE = 64  # columns that the epilogue has in registers at a time; twice as many spill with erf
MIN_STAGES = 3
_KEPT = 64  # answers that no tile changes: a schedule is chosen among some fifty
_SUMMED_BYTES = 2 << 10  # where warps add up the columns of a slice


@dataclass(frozen=True, slots=True)
class Roles:
    """What passes through shared memory. `factors`: of each product, the left and the right one;
    `residuals`: loads of whole tiles in the epilogue, in `residual_slots` at a time; `results`:
    stores, by position, in `result_slots`. `rows`: how many a tile has along each dimension.
    `slice`: columns that the epilogue has in registers at a time."""

    factors: tuple[tuple[Window, Window], ...]
    residuals: Mapping[Value, Window]
    results: Mapping[int, Window]
    rows: Mapping[str, int]
    slice: int = SLICE
    residual_slots: int = 0
    result_slots: int = 0
    free_bytes: int = 0  # of shared memory; negative if all does not fit

    @property
    def inputs(self) -> tuple[Window, ...]:
        """The factors, each once, in order of first use."""
        return tuple(dict.fromkeys(w for pair in self.factors for w in pair))


def supports(accesses: Accesses, contraction: Contraction, table: Target) -> str | None:
    """None if the form "gluon" can make these products, else why not."""
    if table.capability[0] != 9:
        return f"{table.name} is no Hopper GPU"
    pieces = pieces_of(accesses, contraction)
    reasons = (_unsupported(p.accesses, p.contraction) for p in pieces)
    return next((r for r in reasons if r), None) or _uneven(pieces)


def _unsupported(accesses: Accesses, contraction: Contraction) -> str | None:
    if contraction.row_sums or any(p.right_load is None for p in contraction.products):
        return "a factor is computed before it is multiplied"
    if not contraction.rows:
        return "it has a single row"
    if (reason := bad_combining(accesses, contraction)) is not None:
        return reason
    axes, depth = value_axes(accesses.comp.body), frozenset(contraction.depth)
    if any(depth & store_axes(accesses.comp, s, axes) for s in accesses.comp.stores):
        return "a result varies along the depth"
    if any(a.extent == 0 for a in accesses.comp.axes):
        return "the product is empty"
    windows = _windows(accesses, contraction)
    if isinstance(windows, str):
        return windows
    if (reason := bad_factors(accesses, contraction)) is not None:
        return reason
    count = len(contraction.products)
    return None if count <= 2 else f"{count} products at a time"


def _uneven(pieces: tuple[Piece, ...]) -> str | None:
    """Why matrices side by side cannot take the same way through shared memory: it has one place
    for the tiles of all."""
    if len(pieces) == 1:
        return None
    if len({_ways(p) for p in pieces}) > 1:
        return "merged products have different layouts"
    residuals = any(_residuals(p.accesses, p.contraction) for p in pieces)
    return "merged products have a residual" if residuals else None


def _ways(piece: Piece) -> tuple:
    """Of a piece's factors into shared memory, and of its results out of it."""
    windows = _windows(piece.accesses, piece.contraction)
    factors = tuple((left, right.dims, right.dtype) for left, right in windows)
    results = _results(piece.accesses, piece.contraction)
    stores = tuple(results.get(n) for n in range(len(piece.accesses.stores)))
    passing = tuple(w and (w.dims, w.dtype) for w in stores)
    return factors, passing, _computes_indices(piece.accesses, piece.contraction)


def roles_of(pieces: Sequence[Piece], schedule: ProductSchedule) -> list[Roles]:
    """Of each piece. All slices are as wide as the narrowest: results pass through the same shared
    memory."""
    own = [roles(p.accesses, p.contraction, schedule) for p in pieces]
    width = min(r.slice for r in own)
    return [roles(p.accesses, p.contraction, schedule, width) for p in pieces]


def roles(
    accesses: Accesses, contraction: Contraction, schedule: ProductSchedule, widest: int = SLICE
) -> Roles:
    """The windows of a Comp that is supported, one piece of it. Results, then residuals pass
    through shared memory as long as there is space beside the ring of stages."""
    factors = _windows(accesses, contraction)
    assert not isinstance(factors, str)
    rows = {"rows": schedule.block_m, **dict(zip(contraction.rows, schedule.box))}
    tileable = _results(accesses, contraction)
    residuals = _residuals(accesses, contraction)
    width = min(widest, _slice(accesses, contraction, schedule, tileable, residuals))
    points = schedule.block_m * width
    ring = Roles(factors, {}, {}, rows)
    left, slots, results = _space(schedule, ring), min(2, schedule.block_n // width), {}
    for position, result in tileable.items():
        need = slots * points * result.dtype.bytes * (2 if schedule.pingpong else 1)
        if need <= left:
            results[position], left = result, left - need
    left -= points * _scratch_width(accesses, results)
    left -= _SUMMED_BYTES * len(column_sums(accesses, contraction))
    each = sum(points * w.dtype.bytes for w in residuals.values())
    fetched = max(0, min(left // each, schedule.block_n // width)) if residuals else 0
    left -= fetched * each
    return replace(ring, residuals=residuals if fetched else {}, results=results, slice=width,
                   residual_slots=fetched, result_slots=slots, free_bytes=left)  # fmt: skip


@once(_KEPT)
def _windows(
    accesses: Accesses, contraction: Contraction
) -> tuple[tuple[Window, Window], ...] | str:
    """Of the factors of each product, or why TMA cannot make one."""
    pair = _places_and_taps if walks_boxes(accesses, contraction) else _rows_and_columns
    pairs = [pair(accesses, contraction, p) for p in contraction.products]
    reasons = (w for pair in pairs for w in pair if isinstance(w, str))
    return next(reasons, None) or tuple(pairs)


@once(_KEPT)
def walks_boxes(accesses: Accesses, contraction: Contraction) -> bool:
    """Whether rows are places of an image, tiled along each of their axes: where they are not at
    equal distances, or some of what they read is outside of the image."""
    loads = [p.left_load for p in contraction.products]
    if None in loads:
        return True
    offsets = (accesses.loads[v].offset for v in loads)
    return any(linear(accesses, o, contraction.rows) is None for o in offsets)


def _rows_and_columns(accesses: Accesses, contraction: Contraction, p: Product):
    return tuple(
        _factor(accesses, contraction, load, side)
        for load, side in ((p.left_load, "rows"), (p.right_load, "columns"))
    )


def _places_and_taps(accesses: Accesses, contraction: Contraction, p: Product):
    load = image_load(accesses, p)
    if load is None:
        return ("a factor is computed before it is multiplied",)
    return image(accesses, contraction, load), weight(accesses, contraction, p.right_load)


def _slice(
    accesses: Accesses,
    contraction: Contraction,
    schedule: ProductSchedule,
    tileable: Mapping[int, Window],
    residuals: Mapping[Value, Window],
) -> int:
    """As many columns as there are registers for: 32 points of a thread, 64 of one product with a
    long epilogue that is no more than arithmetic on it."""
    threads = 32 * schedule.num_warps
    computed = len(tileable) == len(accesses.comp.stores) and not residuals
    computed &= not _computes_indices(accesses, contraction) and len(contraction.products) == 1
    spare = schedule.block_m * schedule.block_n <= 128 * threads
    long = spare and computed and epilogue_cost(accesses, contraction) >= _LONG_EPILOGUE
    points = 64 if long else 32
    return min(schedule.block_n, SLICE, points * threads // schedule.block_m)


@once(_KEPT)
def _computes_indices(accesses: Accesses, contraction: Contraction) -> bool:
    """Whether an epilogue works with the numbers of its rows or columns."""
    body = accesses.comp.body
    stored = (v for s in accesses.comp.stores for v in store_operands(s))
    after = needed(body, stored, stop={p.value for p in contraction.products})
    return any(isinstance(body[v], Index) for v in after)


def _space(schedule: ProductSchedule, ring: Roles) -> int:
    """Bytes beside the ring of stages."""
    return SHARED_BYTES - schedule.stages * stage_bytes(ring, schedule)


def stage_bytes(roles: Roles, schedule: ProductSchedule) -> int:
    """Of one step along the depth, all factors."""
    sides = {**roles.rows, "columns": schedule.block_n, "depth": schedule.block_k}
    return sum(product(w.block(**sides)) * w.dtype.bytes for w in roles.inputs)


def valid(schedule: ProductSchedule, accesses: Accesses, contraction: Contraction) -> bool:
    """Whether codegen can make a correct kernel of this that does not spill."""
    return all(_is_valid(schedule, p) for p in pieces_of(accesses, contraction))


def _is_valid(schedule: ProductSchedule, piece: Piece) -> bool:
    accesses, contraction = piece.accesses, piece.contraction
    count = len(contraction.products)
    threads = 32 * schedule.num_warps
    most = _most_accumulators(schedule, accesses, contraction)
    return (
        schedule.form == "gluon"
        and schedule.splits == 1
        and schedule.block_n in PARTS
        and schedule.num_warps == (4 if schedule.pingpong else 8)
        and schedule.block_m % (16 * schedule.num_warps) == 0
        and schedule.block_m in (64, 128)
        and schedule.block_k in (32, 64, 128)
        and count * schedule.block_m * schedule.block_n <= most * threads
        and schedule.stages >= 2
        and _has_fitting_box(schedule, accesses, contraction)
        and roles(accesses, contraction, schedule).free_bytes >= 0
    )


def _most_accumulators(
    schedule: ProductSchedule, accesses: Accesses, contraction: Contraction
) -> int:
    """Of a thread. Corners of boxes take registers, too: beside several of them 192 spill."""
    table = MOST_IN_TURN if schedule.pingpong else MOST_TOGETHER
    most = table[_computes_indices(accesses, contraction)]
    passing = len(_results(accesses, contraction)) + len(_residuals(accesses, contraction))
    return min(most, MOST_TOGETHER[0]) if schedule.box and passing > 2 else most


def _has_fitting_box(
    schedule: ProductSchedule, accesses: Accesses, contraction: Contraction
) -> bool:
    """Whether rows that are places have a box of them; then steps of the depth that are whole
    within a pixel, where a dimension has several side by side. In groups, they may reach into the
    next one: there is no weight there, which TMA reads as zero. Where columns are added up, there
    are as many boxes as the kernel without TMA has tiles."""
    if not walks_boxes(accesses, contraction):
        return not schedule.box
    rows = [accesses.comp.extent(a) for a in contraction.rows]
    uneven = schedule.row_tiles(rows) != replace(schedule, box=()).row_tiles(rows)
    if uneven and column_sums(accesses, contraction):
        return False
    images = (left for left, _ in _windows(accesses, contraction))
    channels = accesses.comp.extent(contraction.depth[-1])
    whole = channels % schedule.block_k == 0 or all(w.shape[-1] == channels for w in images)
    whole |= bool(contraction.batch)
    fits = len(schedule.box) == len(contraction.rows) and prod(schedule.box) == schedule.block_m
    return whole and fits


def candidates(
    accesses: Accesses,
    contraction: Contraction,
    table: Target,
    hints: Mapping[str, int] | None = None,
) -> Iterator[ProductSchedule]:
    """Valid schedules, the most promising first."""
    shapes = _PAIR_SHAPES if len(contraction.products) == 2 else _SHAPES
    pieces = pieces_of(accesses, contraction)
    found = []
    step = _step(accesses, contraction)
    for shape in shapes:
        box = _box(accesses, contraction, shape[0])
        tries = (_tiled(*shape, step, stages, table.units, box) for stages in (8, 7, 6, 5, 4, 3))
        fits = (t for t in tries if all(_is_valid(t, p) and _passes(t, p) for p in pieces))
        found += list(fits)[:1]
    if not found:
        return
    cycles = {s: predicted_cycles(s, pieces, table, hints or {}) for s in found}
    first, *others = (replace(s, early=cycles[s] < _SHORT_CYCLES)
                      for s in sorted(found, key=cycles.__getitem__))  # fmt: skip
    yield from (first, *others, replace(first, early=not first.early), replace(first, group=16))


@once(_KEPT)
def _step(accesses: Accesses, contraction: Contraction) -> int:
    """Of the depth: 64, but for images with channels of which it would leave much empty."""
    channels = accesses.comp.extent(contraction.depth[-1])
    if not walks_boxes(accesses, contraction):
        return 64
    wide, narrow = (-(-channels // step) * step for step in (64, 32))
    return 32 if wide > _MUCH_EMPTY * narrow else 64


def _box(accesses: Accesses, contraction: Contraction, points: int) -> tuple[int, ...]:
    if not walks_boxes(accesses, contraction):
        return ()
    return best_box([accesses.comp.extent(a) for a in contraction.rows], points)


def _tiled(
    rows: int, columns: int, in_turn: bool, step: int, stages: int, units: int,
    box: tuple[int, ...],
) -> ProductSchedule:  # fmt: skip
    return ProductSchedule("gluon", rows, columns, step, 4 if in_turn else 8, stages,
                           programs=units, pingpong=in_turn, box=box)  # fmt: skip


# rows, columns, whether two groups of warps take turns
_SHAPES = (
    (128, 128, True), (128, 192, True), (64, 192, True), (64, 128, True), (128, 64, True),
    (64, 64, True), (128, 256, False), (128, 192, False), (128, 128, False),
)  # fmt: skip
_PAIR_SHAPES = (
    (128, 64, True), (64, 128, True), (64, 64, True), (64, 32, True), (128, 128, False),
)  # fmt: skip

# Of one multiprocessor and clock cycle, and in cycles: what ranks tiles. Fitted to 200 kernels for
# 34 problems on an H100: 7 % off; the first tile is half a percent slower than the best on average.
_PRODUCTS_PER_CYCLE = 1650  # of 2048: the power limit slows the clock down
_COPIED_BYTES_PER_CYCLE = 68
_IMAGE_BYTES_PER_CYCLE = 31  # a tile of an image has no other reader at that time
_SHARED_BYTES_PER_CYCLE = 143  # to it and from it
_CYCLES_PER_INSTRUCTION = 1.1  # of an epilogue
_CYCLES_IN_TURN = 0.5  # of one beside products, which both slow down
_LONG_EPILOGUE = 12  # instructions for each point: a gate, a gelu
_INSTRUCTIONS_PER_RESULT = 4  # to narrow, move and store it
_SFU_SHARE = 0.55  # of the cost of a function in the IR's table, as the fast forms are
_TILE_CYCLES = 2800  # in which neither unit has work, at the end of a tile
_START_CYCLES = 5400
_MUCH_EMPTY = 1.15
_SHORT_CYCLES = 40_000  # of a kernel that gains by beginning while the one before it ends


def predicted_cycles(
    schedule: ProductSchedule,
    pieces: tuple[Piece, ...],
    table: Target,
    hints: Mapping[str, int],
) -> float:
    """Of a whole kernel whose data is in the last-level cache. With pingpong, the epilogue of one
    tile takes place during the products of the next."""
    accesses, contraction = pieces[0].accesses, pieces[0].contraction

    def points(axes: tuple[str, ...]) -> int:
        return size.hint(product(accesses.comp.extent(a) for a in axes), hints)

    s = schedule
    rows = [size.hint(accesses.comp.extent(a), hints) for a in contraction.rows]
    tiles = points(contraction.batch) * s.row_tiles(rows)
    tiles *= sum(-(-size.hint(p.columns, hints) // s.block_n) for p in pieces)
    turns = -(-tiles // table.units)
    area = s.block_m * s.block_n
    multiply = area * s.block_k * len(contraction.products) / _PRODUCTS_PER_CYCLE
    ring = roles(accesses, contraction, s)
    staged = stage_bytes(ring, s)
    shared = (staged + _read_bytes(s, len(contraction.products))) / _SHARED_BYTES_PER_CYCLE
    copies = staged / _COPIED_BYTES_PER_CYCLE
    if s.box:
        images = stage_bytes(replace(ring, factors=tuple((x, x) for x, _ in ring.factors)), s)
        copies += images / _IMAGE_BYTES_PER_CYCLE - images / _COPIED_BYTES_PER_CYCLE
    steps = -(-size.hint(walked_depth(accesses, contraction, s), hints) // s.block_k)
    loop = steps * max(multiply, shared, copies)
    each = max(epilogue_cost(p.accesses, p.contraction) for p in pieces)
    instructions = area // (32 * s.num_warps) * each
    epilogue = instructions * _CYCLES_PER_INSTRUCTION + _TILE_CYCLES
    if s.pingpong:
        loop += instructions * _CYCLES_IN_TURN
        return turns * max(loop, (loop + epilogue) / 2) + epilogue + _START_CYCLES
    return turns * (loop + epilogue) + _START_CYCLES


def walked_depth(
    accesses: Accesses, contraction: Contraction, schedule: ProductSchedule
) -> Size:
    """Elements of the depth, of an image with each tap's channels in whole steps."""
    extents = [accesses.comp.extent(a) for a in contraction.depth]
    if not schedule.box:
        return product(extents)
    *taps, channels = extents
    return product(taps) * -(-channels // schedule.block_k) * schedule.block_k


def _read_bytes(schedule: ProductSchedule, products: int) -> int:
    """Of shared memory in one step: an instruction reads its 64 rows and all its columns."""
    columns = [c * products for c in PARTS[schedule.block_n]]
    return schedule.block_m // 64 * sum(64 + c for c in columns) * schedule.block_k * 2


@once(_KEPT)
def epilogue_cost(accesses: Accesses, contraction: Contraction) -> float:
    """Instructions for each point of the result."""
    body, axes = accesses.comp.body, value_axes(accesses.comp.body)
    depth = frozenset(contraction.depth)
    whole = frozenset(contraction.rows + contraction.columns)
    computed = (i for v, i in enumerate(body) if whole <= axes[v] and not depth & axes[v])
    costs = sum(_instructions(i) for i in computed)
    return costs + _INSTRUCTIONS_PER_RESULT * len(accesses.comp.stores)


def _instructions(instr: Instr) -> float:
    if not isinstance(instr, Op):
        return 1.0
    row = TABLE[instr.name]
    return row.cost * _SFU_SHARE if row.sfu else row.cost


def _passes(schedule: ProductSchedule, piece: Piece) -> bool:
    """Whether all that can pass through shared memory does, two residual slots at least, unless
    stages are at their fewest."""
    accesses, contraction = piece.accesses, piece.contraction
    used = roles(accesses, contraction, schedule)
    slots = used.result_slots
    results = len(used.results) == len(_results(accesses, contraction))
    fetched = not _residuals(accesses, contraction) or used.residual_slots >= slots
    return schedule.stages <= MIN_STAGES or (results and fetched)


def _factor(
    accesses: Accesses, contraction: Contraction, load: Value, side: str
) -> Window | str:
    return window(accesses, contraction, accesses.loads[load], accesses.comp.body[load].dtype,
                   (side, "depth"))  # fmt: skip


@once(_KEPT)
def _residuals(accesses: Accesses, contraction: Contraction) -> Mapping[Value, Window]:
    """Loads in the epilogue of whole tiles that TMA can make."""
    factors = {v for p in contraction.products for v in (image_load(accesses, p), p.right_load)}
    body, axes = accesses.comp.body, value_axes(accesses.comp.body)
    needed = frozenset(contraction.rows + contraction.columns)
    found = {}
    for value, access in accesses.loads.items():
        load = body[value]
        assert isinstance(load, Load)
        if value not in factors and load.guard is None and needed <= axes[value]:
            found[value] = _tile_window(accesses, contraction, access, load.dtype)
    return {v: w for v, w in found.items() if isinstance(w, Window)}


@once(_KEPT)
def _results(accesses: Accesses, contraction: Contraction) -> Mapping[int, Window]:
    """Stores of whole tiles that TMA can make, by position."""
    found = {}
    for position, (store, access) in enumerate(zip(accesses.comp.stores, accesses.stores)):
        if _stores_tiles(accesses, contraction, store):
            dtype = accesses.comp.body[store.value].dtype
            found[position] = _tile_window(accesses, contraction, access, dtype)
    windows = {p: w for p, w in found.items() if isinstance(w, Window)}
    return {p: w for p, w in windows.items() if _ends_a_line(w, accesses.stores[p].slack)}


def _ends_a_line(result: Window, slack: int) -> bool:
    """Whether what is behind its columns is not hurt: TMA ends rows at multiples of 16 bytes, and
    writes what is left of that many (triton-lang/triton, issue 11583). `slack`: of the buffer."""
    columns, lanes = result.shape[-1], TMA_BYTES // result.dtype.bytes
    if known_factor(columns) % lanes == 0:
        return True
    *steps, pitch = result.strides[:-1]
    numbers = (columns, result.offset, pitch, *steps)
    if not slack or not all(isinstance(n, int) for n in numbers) or any(s % pitch for s in steps):
        return False
    return result.offset % pitch + columns == pitch - slack


def _stores_tiles(accesses: Accesses, contraction: Contraction, store: Store) -> bool:
    value = accesses.comp.body[store.value]
    axes = value_axes(accesses.comp.body)[store.value]
    needed = frozenset(contraction.batch + contraction.rows + contraction.columns)
    return store.guard is None and needed <= axes and not isinstance(value, Const)


def _tile_window(
    accesses: Accesses, contraction: Contraction, access: Access, dtype: DType
) -> Window | str:
    if not dtype.is_float or dtype.bits not in (16, 32):
        return f"{dtype} does not pass through TMA"
    if walks_boxes(accesses, contraction):
        return places(accesses, contraction, access, dtype)
    found = window(accesses, contraction, access, dtype, ("rows", "columns"))
    if isinstance(found, Window) and found.dims[-1] != "columns":
        return "rows are contiguous"
    return found


def _scratch_width(accesses: Accesses, results: Mapping[int, Window]) -> int:
    """Bytes for each point of a slice that is stored from registers, which change places in shared
    memory: 32 bits at least."""
    body = accesses.comp.body
    stores = enumerate(accesses.comp.stores)
    direct = [s for p, s in stores if p not in results and s.combine is None]
    return max((max(4, body[s.value].dtype.bytes) for s in direct), default=0)
