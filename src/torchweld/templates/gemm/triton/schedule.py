"""How the Triton product template is tiled: what it refuses, which tiles are correct, the default
and its neighbours.

    triton    tiles of rows and columns, each program walks the whole depth
    stream    up to STREAM_ROWS rows: narrow tiles of columns, `splits` programs share the depth, so
              that enough of the right factor is in flight on all multiprocessors. Where the right
              factor is computed, several programs share a multiprocessor: what one waits for,
              another computes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.errors import InvalidIR
from torchweld.ir import size
from torchweld.ir.access import Accesses, linear
from torchweld.ir.contraction import Contraction, bad_combining, operand
from torchweld.ir.expand import TUPLES
from torchweld.ir.nodes import Instr, Reduce, Value, needed, store_axes, value_axes
from torchweld.targets.target import Target
from torchweld.templates.gemm.concatenation import Part, parts_of
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.pointwise_reduce.gpu.schedule import MAX_GRID_Y, extent, next_pow2

STREAM_ROWS = 64
_MOST_SHARED = 32  # rows of a left factor that something else reads, too
MIN_STAGES, MAX_STAGES = 4, 12  # of streams; two are always correct
MAX_SPLITS = 32  # their sums are written out: 64 take ptxas ten seconds
FEW_SPLITS, _LONG_SHARE = 16, 1024  # more only where each has so much of the depth
SHARED_REST = 4 << 10  # bytes for sums across warps
_SHARED_COMPUTED = 8 << 10  # more, where a right factor is computed before it is multiplied
_LEAST_OPPOSED = 64  # columns of a tile of right factors that lie in both directions (runtime/sass)
_MOST_PHASES = 8  # 4-bit numbers in 32 bits
MAX_ACCUMULATORS = 128  # float32 registers of a thread

# (block_m, block_n, block_k, warps, stages) by falling size: the first that makes enough tiles is
# the default. `_PAIRED` where two products are accumulated.
_TILES = (
    (128, 128, 64, 8, 3),
    (128, 128, 64, 4, 3),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 32, 64, 4, 4),
)
_PAIRED = ((128, 128, 64, 8, 3), (128, 64, 64, 4, 3), (64, 64, 64, 4, 4), (64, 32, 64, 4, 4))
# Of float32, which is split in registers (codegen/triton/wide.py): the largest spill on sm_80. For
# wgmma a right factor that lies along the columns is turned, so that its tiles are narrow: 1024 x
# 1024 with a depth of 4096 takes an H100 157 us in tiles of 128 x 32, 223 in 128 x 64.
_WIDE = ((128, 64, 32, 4, 3), (64, 64, 32, 4, 3))
_WIDE_TURNED = ((128, 32, 32, 4, 3), (64, 32, 32, 4, 3))
# Of float32 windows, whose places take registers: H100, us, with 4 and 8 warps, 8 to 64 channels,
# 10^6 places 260, 250; 64 to 128, 120000 253, 247; 256 to 256, 12500 241, 195.
_WIDE_WINDOWS = ((128, 64, 32, 8, 3), (64, 64, 32, 4, 3))
_WIDE_PAIRED = ((128, 64, 32, 8, 3), (64, 64, 32, 4, 3), (64, 32, 32, 4, 3))
_WIDE_FEW = ((64, 64, 32, 4), (64, 32, 32, 4))
# Programs of a multiprocessor that share the depth of float32 products, if tiles are few: what one
# waits for, the other computes. H200, us, in tiles of 64 x 64, a program and two, and the library:
# 512 x 512 x 2048 27, 21.7, 31.8; 256 x 256 x 8192 29, 23.8, 32.7. In tiles of 128 x 64, two: 1000
# x 1000 x 1000 35.4, the library 50.8; 256 x 256 x 524288 954, 1304.
_SHARING = 2
_WIDE_LEAST = 16  # rows, columns and depth: less fills no instruction
_DEEPEST_BYTES = 1 << 17  # of 8-bit integers: sums stay below 2^31, where GPUs differ
_VECTOR = 4  # numbers of float32 in a load of 16 bytes
_SMALL = 64 * 64  # points of a tile; smaller ones read too much
# (block_m, block_n, block_k, warps) where there are few tiles.
_FEW = ((64, 32, 64, 4), (128, 32, 64, 4), (128, 32, 64, 8), (64, 64, 64, 4), (64, 32, 128, 4))
# By block_m: (block_n, stages, warps, programs of a multiprocessor) of streams whose right factor
# is computed. H100, 4096 x 4096, a row: int8 10.3 us with 4 programs, 12.4 with 1; int4 12.1, 14.6.
_COMPUTED = {16: ((32, 4, 4, 4), (32, 8, 4, 2)), 64: ((64, 8, 4, 1), (64, 4, 4, 1), (32, 4, 4, 1))}
_COMPUTED_DEPTH = 128
_COMPUTED_SPLITS = 8
# (block_n, block_k, warps) of other streams.
_STREAMS = ((32, 128, 4), (32, 256, 4), (16, 256, 4), (64, 128, 4), (16, 128, 4), (64, 128, 8))


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be tiled, and where. Extents are typical ones, at least one."""

    accesses: Accesses
    contraction: Contraction
    table: Target
    batch: int
    rows: int
    columns: int
    depth: int

    def programs(self, s: ProductSchedule) -> int:
        """Tiles of all batches."""
        return self.batch * -(-self.rows // s.block_m) * -(-self.columns // s.block_n)

    def possible(self, s: ProductSchedule) -> bool:
        return valid(s, self.accesses, self.contraction) and self.fits(s)

    @property
    def is_wide(self) -> bool:
        """Whether its factors are float32."""
        return _dtype_of(self.accesses, self.contraction) == dtypes.f32

    def table_of(self, one, pair, wide, wide_pair):
        """The table for this number of products, and its dtype."""
        if self.is_wide:
            one, pair = wide, wide_pair
            if self.table.capability < (9, 0):
                one, pair = one[-1:], pair[-1:]
        found = one if len(self.contraction.products) == 1 else pair
        packed = _packed(self.accesses, self.contraction)
        return tuple((m, n, k * packed, *rest) for m, n, k, *rest in found)

    def narrowed(self, s: ProductSchedule) -> ProductSchedule:
        """`s` with tiles as narrow as what there is."""
        c = self.contraction
        sides = [extent(self.accesses, axes) for axes in (c.columns, c.depth)]
        narrow = _packed(self.accesses, c) == 1 and len(c.products) == 1
        return s.within(*sides) if narrow and all(isinstance(n, int) for n in sides) else s

    def fits(self, s: ProductSchedule) -> bool:
        staged = staged_bytes(s, self.accesses, self.contraction, self.table)
        return staged + _shared_rest(self.contraction) <= self.table.shared_bytes


def supports(accesses: Accesses, contraction: Contraction, table: Target) -> str | None:
    """None if the template can make `contraction`; else why not."""
    body = accesses.comp.body
    if table.capability < (8, 0):
        return "this device has no asynchronous copies"
    found = {_factor_dtype(body, v) for v in _factors(contraction)}
    if None in found:
        return "a factor is not rounded to 16 bits"
    if len(found) > 1:
        return "its factors differ in dtype"
    return (
        (_bad_width(accesses, contraction) if dtypes.f32 in found else None)
        or (_bad_bytes(accesses, contraction) if dtypes.i8 in found else None)
        or _bad_sharing(accesses, contraction)
        or _bad_reduction(accesses, contraction)
        or _bad_store(accesses, contraction)
    )


def candidates(
    accesses: Accesses,
    contraction: Contraction,
    table: Target,
    hints: Mapping[str, int] | None = None,
) -> Iterator[ProductSchedule]:
    """The default first, then what a tuner may time."""
    c = contraction
    extents = (extent(accesses, axes) for axes in (c.batch, c.rows, c.columns, c.depth))
    work = _Work(accesses, c, table, *(max(1, size.hint(e, hints or {})) for e in extents))
    seen: set[ProductSchedule] = set()
    for made in (_streams(work), _tiles(work)):
        for s in made:
            if s not in seen and work.possible(s):
                seen.add(s)
                yield s
        if seen:  # many products at a time over few rows fit in tiles alone
            return


def first(
    accesses: Accesses,
    contraction: Contraction,
    table: Target,
    hints: Mapping[str, int] | None = None,
) -> ProductSchedule:
    """The default. Raises InvalidIR where no tiling fits."""
    found = next(candidates(accesses, contraction, table, hints), None)
    if found is None:
        raise InvalidIR(f"{accesses.comp.name}: no tiling of a Triton kernel fits")
    return found


def valid(schedule: ProductSchedule, accesses: Accesses, contraction: Contraction) -> bool:
    """Whether codegen can make a correct kernel of this: the only place where that is decided."""
    s, c = schedule, contraction
    blocks = (s.block_m, s.block_n, s.block_k)
    columns = extent(accesses, c.columns)
    return (
        s.form in ("triton", "stream")
        and all(b >= 16 and b & (b - 1) == 0 for b in blocks)
        and s.block_k >= 16 * _packed(accesses, c) * points_of(accesses, phases_of(accesses, c))
        and s.num_warps in (1, 2, 4, 8)
        and 1 <= s.stages <= MAX_STAGES
        and s.group >= 1
        and all(operand(accesses.comp.body, v) is not None for v in _factors(c))
        and accumulators(s, c) <= MAX_ACCUMULATORS
        and (s.block_m <= _MOST_SHARED or not _second_reader(accesses, c))
        and (not isinstance(columns, int) or columns <= MAX_GRID_Y * s.block_n)
        and (s.splits == 1 or _splittable(s, accesses, c))
        and (s.block_n >= _LEAST_OPPOSED or not _opposed(accesses, c))
    )


def _opposed(accesses: Accesses, c: Contraction) -> bool:
    """Whether some right factors are contiguous along the columns, and others along the depth."""
    return len(_directions(accesses, c)) > 1


def lies_along_columns(accesses: Accesses, c: Contraction) -> bool:
    """Whether some right factor is contiguous along the columns."""
    return True in _directions(accesses, c)


def _directions(accesses: Accesses, c: Contraction) -> set[bool]:
    """For each right factor that is loaded: whether it is contiguous along the columns."""
    loads = [accesses.loads[p.right_load] for p in c.products if p.right_load is not None]
    return {linear(accesses, load.offset, c.columns) == 1 for load in loads}


def phases_of(accesses: Accesses, contraction: Contraction) -> tuple[str, ...]:
    """Short axes of the depth that one number of each packed right factor has several elements
    along, in the order of a left factor: nothing that is read for a right factor varies along
    them."""
    c, body = contraction, accesses.comp.body
    left = c.products[0].left_load
    if left is None or c.row_sums or any(p.right_load is not None for p in c.products):
        return ()
    behind = needed(body, [p.right for p in c.products])
    read = set().union(*(accesses.loads[v].offset.axes for v in behind if v in accesses.loads))
    found = tuple(a for a in c.depth if a not in read)
    sizes = [accesses.comp.extent(a) for a in found]
    steps = {a: accesses.loads[left].offset.coefficient(a) for a in found}
    known = all(isinstance(n, int) for n in (*sizes, *steps.values()))
    if not known or any(n & (n - 1) for n in sizes) or prod(sizes) > _MOST_PHASES:
        return ()
    return tuple(sorted(found, key=lambda a: -steps[a]))


def points_of(accesses: Accesses, phases: tuple[str, ...]) -> int:
    """How many elements one packed number has."""
    return prod(accesses.comp.extent(a) for a in phases)


def accumulators(schedule: ProductSchedule, contraction: Contraction) -> int:
    """Registers of a thread that hold products."""
    points = schedule.block_m * schedule.block_n * len(contraction.products)
    return points // (32 * schedule.num_warps)


def staged_bytes(
    schedule: ProductSchedule, accesses: Accesses, contraction: Contraction, table: Target
) -> int:
    """Shared memory for the tiles of factors that are under way."""
    waiting = schedule.stages - (not _reads_shared(schedule, table))
    return waiting * _stage_bytes(schedule, accesses, contraction)


def _reads_shared(schedule: ProductSchedule, table: Target) -> bool:
    """Hopper's dots of 64 rows and more read a stage from shared memory while others arrive."""
    return table.capability >= (9, 0) and schedule.block_m >= 64


def _stage_bytes(s: ProductSchedule, accesses: Accesses, c: Contraction) -> int:
    lefts = _loaded_bytes(accesses, c, [p.left for p in c.products], s)
    rights = _loaded_bytes(accesses, c, [p.right for p in c.products], s)
    packed = s.block_k // points_of(accesses, phases_of(accesses, c))
    return s.block_m * lefts * s.block_k + s.block_n * rights * packed


def one_at_a_time(
    accesses: Accesses, contraction: Contraction, schedule: ProductSchedule, value: Value
) -> tuple[Part, ...]:
    """The parts of a right factor if each tile has columns of one of them alone."""
    parts = parts_of(accesses, contraction, value)
    return parts if all(p.first % schedule.block_n == 0 for p in parts) else ()


def _loaded_bytes(
    accesses: Accesses, c: Contraction, factors: list[Value], schedule: ProductSchedule
) -> int:
    """What is loaded for each point of the tiles of some factors."""
    body, axes = accesses.comp.body, value_axes(accesses.comp.body)
    found: set[Value] = set()
    for value in factors:
        parts = one_at_a_time(accesses, c, schedule, operand(body, value))
        found |= {parts[0].load} if parts else needed(body, (value,))
    depth = _block_axes(accesses, c, schedule)
    loads = (v for v in found & set(accesses.loads) if axes[v] & depth)
    return sum(body[v].dtype.bytes for v in loads if axes[v] - depth or not c.rows)


def _block_axes(accesses: Accesses, c: Contraction, s: ProductSchedule) -> set[str]:
    """The axes that a block of the depth goes along: of a computed right factor, one group's alone
    where blocks end with groups."""
    computed = all(p.right_load is None for p in c.products)
    within = computed and _group_of(accesses, c) % s.block_k == 0
    return set(_run_of(accesses, c)) if within else set(c.depth)


def _run_of(accesses: Accesses, c: Contraction) -> tuple[str, ...]:
    """The innermost axis of the depth, and those of the phases."""
    phases = phases_of(accesses, c)
    return (*[a for a in c.depth if a not in phases][-1:], *phases)


def _group_of(accesses: Accesses, c: Contraction) -> int:
    """Elements along these axes; one, which no block ends with, if that is not known."""
    extents = [accesses.comp.extent(a) for a in _run_of(accesses, c)]
    return prod(extents) if all(isinstance(e, int) for e in extents) else 1


def _splittable(s: ProductSchedule, accesses: Accesses, c: Contraction) -> bool:
    """Scratch for partial results has a size that is known, and each share has some depth."""
    if not _has_known_sizes(accesses, c) or extent(accesses, c.batch) * s.splits > MAX_GRID_Y:
        return False
    return 1 < s.splits <= min(MAX_SPLITS, -(-extent(accesses, c.depth) // s.block_k))


def _has_known_sizes(accesses: Accesses, c: Contraction) -> bool:
    extents = (extent(accesses, axes) for axes in (c.batch, c.rows, c.columns, c.depth))
    return all(isinstance(e, int) for e in extents)


def _tiles(work: _Work) -> Iterator[ProductSchedule]:
    """The largest tiles of which there are enough for all multiprocessors, then its neighbours in
    the table. Where there are too few, small ones."""
    has_wgmma = work.table.capability >= (9, 0)
    turned = has_wgmma and lies_along_columns(work.accesses, work.contraction)
    wide, few = (_WIDE_TURNED, _WIDE_FEW[1:]) if turned else (_WIDE, _WIDE_FEW)
    wide = _WIDE_WINDOWS if not turned and _reads_windows(work) else wide
    shapes = work.table_of(_TILES, _PAIRED, wide, _WIDE_PAIRED)
    fit = [s for shape in shapes if work.fits(s := ProductSchedule("triton", *shape))]
    single = len(work.contraction.products) == 1 and not _reads_windows(work)
    if work.is_wide and has_wgmma and not turned and single:
        yield from _sharing_depth(work, fit)
    enough = [s for s in fit if work.programs(s) >= work.table.units]
    if not enough or enough[0].block_m * enough[0].block_n < _SMALL:
        few = work.table_of(_FEW, _FEW, few, _WIDE_FEW)
        yield from map(work.narrowed, _in_one_wave(work, "triton", few))
        return
    first, at = work.narrowed(enough[0]), fit.index(enough[0])
    yield first
    yield from map(work.narrowed, fit[max(0, at - 1) : at + 3])
    yield from (replace(first, stages=n) for n in (first.stages - 1, first.stages + 1))
    yield replace(first, block_k=min(32, first.block_k), stages=first.stages + 1)


def _sharing_depth(work: _Work, fit: list[ProductSchedule]) -> Iterator[ProductSchedule]:
    """Of float32, if the largest tiles are few: the smaller ones, unless these are many or shares
    of the depth are long, with as many shares as make _SHARING programs for each multiprocessor."""
    if not fit or work.programs(fit[0]) >= work.table.units:
        return
    shared = [replace(s, splits=_shares(work, s, _SHARING * work.table.units)) for s in fit]
    large, small = shared[0], shared[-1]
    long = work.depth >= _LONG_SHARE * large.splits
    first = large if long or work.programs(small) > work.table.units else small
    yield from dict.fromkeys((first, large, small))


def _shares(work: _Work, s: ProductSchedule, programs: int) -> int:
    """Of the depth, so that there are no more than so many programs."""
    many = min(MAX_SPLITS, max(FEW_SPLITS, work.depth // _LONG_SHARE))
    most_shares = many if _has_known_sizes(work.accesses, work.contraction) else 1
    most = max(1, min(most_shares, work.depth // (2 * s.block_k)))
    return max(1, min(most, programs // work.programs(s)))


def _reads_windows(work: _Work) -> bool:
    """Whether rows are places of an image that is read in place."""
    loads = (p.left_load for p in work.contraction.products)
    offsets = [work.accesses.loads[v].offset for v in loads if v is not None]
    return any(linear(work.accesses, o, work.contraction.rows) is None for o in offsets)


def _streams(work: _Work) -> Iterator[ProductSchedule]:
    if work.rows > STREAM_ROWS or work.is_wide:  # the call may bring many rows of float32
        return iter(())
    known = isinstance(extent(work.accesses, work.contraction.rows), int)
    if any(p.right_load is None for p in work.contraction.products):
        return _computed_streams(work, 16 if known and work.rows <= 16 else STREAM_ROWS)
    block_m = max(16, next_pow2(work.rows)) if known else STREAM_ROWS  # there may be more
    return _in_one_wave(work, "stream", [(block_m, *shape) for shape in _STREAMS])


def _computed_streams(work: _Work, block_m: int) -> Iterator[ProductSchedule]:
    """Of a right factor that is computed. They do not begin early: there is nothing that they could
    fetch, and would take places from programs of the kernel before."""
    block_k = _block_of_runs(work)
    for block_n, stages, warps, each in _COMPUTED[block_m]:
        made = ProductSchedule("stream", block_m, block_n, block_k, warps, stages, 1)
        most = max(1, min(_COMPUTED_SPLITS, work.depth // (2 * block_k)))
        shares = max(1, min(most, each * work.table.units // work.programs(made)))
        for splits in dict.fromkeys((shares, max(1, shares // 2), 1)):
            yield replace(made, splits=splits)


def _block_of_runs(work: _Work) -> int:
    """Of the depth: within one group, so that its scale is read once."""
    accesses, contraction = work.accesses, work.contraction
    group = _group_of(accesses, contraction)
    within = min(_COMPUTED_DEPTH, group & -group)
    least = 16 * points_of(accesses, phases_of(accesses, contraction))
    return within if within >= least else _COMPUTED_DEPTH


def _in_one_wave(work: _Work, form, shapes) -> Iterator[ProductSchedule]:
    """Each shape with as many shares of the depth as there are idle multiprocessors for, or half
    of them; with one where the scratch of several has no known size. Stages fill the shared memory
    of a multiprocessor, so that blocks of the next kernel, which begin early, do not crowd on those
    that are idle first."""
    units = work.table.units
    for shape in shapes:
        made = ProductSchedule(form, *shape, 2, 1, early=work.table.begins_early)
        shares = _shares(work, made, units)
        for splits in dict.fromkeys((shares, max(1, shares // 2))):
            near, programs = replace(made, splits=splits), splits * work.programs(made)
            if programs <= units:
                yield _deepest(work, near, (1,))
            if programs > 0.9 * units:
                yield _deepest(work, near, (2, 1))


def _shared_rest(contraction: Contraction) -> int:
    computed = any(p.right_load is None for p in contraction.products)
    return SHARED_REST + computed * _SHARED_COMPUTED


def _deepest(work: _Work, s: ProductSchedule, blocks: tuple[int, ...]) -> ProductSchedule:
    """With as many stages as fit into shared memory beside each other for one of these numbers of
    blocks, the first that leaves enough."""
    stage = _stage_bytes(s, work.accesses, work.contraction)
    for count in blocks:
        space = work.table.shared_bytes // count - _shared_rest(work.contraction)
        stages = space // stage + (not _reads_shared(s, work.table))
        if stages >= MIN_STAGES:
            return replace(s, stages=min(stages, MAX_STAGES))
    return replace(s, stages=2)


def _factors(contraction: Contraction) -> list[Value]:
    return [v for p in contraction.products for v in (p.left, p.right)]


def _factor_dtype(body: tuple[Instr, ...], value: Value) -> DType | None:
    narrow = operand(body, value)
    return None if narrow is None else body[narrow].dtype


def _dtype_of(accesses: Accesses, contraction: Contraction) -> DType | None:
    """Of the factors of its products."""
    return _factor_dtype(accesses.comp.body, contraction.products[0].left)


def _packed(accesses: Accesses, contraction: Contraction) -> int:
    """How many elements are as many bytes as one of 16 bits, or of more."""
    return 2 if _dtype_of(accesses, contraction) == dtypes.i8 else 1


def _bad_width(accesses: Accesses, contraction: Contraction) -> str | None:
    """Of float32: few rows are bound by memory, and the library reads it as fast."""
    c = contraction
    rows, columns, depth = (extent(accesses, axes) for axes in (c.rows, c.columns, c.depth))
    if isinstance(rows, int) and rows <= STREAM_ROWS:
        return "few rows of float32"
    small = [e for e in (columns, depth) if isinstance(e, int) and e < _WIDE_LEAST]
    if small:
        return f"float32 of {small[0]} columns, or so deep"
    factors = (operand(accesses.comp.body, v) for v in _factors(c))
    if any(_starts_anywhere(accesses, v) for v in factors):
        return "lines of a float32 factor begin at no multiple of 16 bytes"
    return None


def _starts_anywhere(accesses: Accesses, factor: Value | None) -> bool:
    """Whether a float32 factor is loaded number by number. 515 x 976 by 976 x 397 takes an H100
    four times as long then as the library's kernel."""
    if factor not in accesses.loads:
        return False
    offset = accesses.loads[factor].offset
    steps = (offset.coefficient(a) for a in offset.axes)
    return any(isinstance(n, int) and n != 1 and n % _VECTOR for n in steps)


def _bad_bytes(accesses: Accesses, contraction: Contraction) -> str | None:
    """Of 8-bit integers, which tensor cores take from memory in one order only."""
    c = contraction
    loads = (v for p in c.products for v in (p.left_load, p.right_load) if v is not None)
    if any(linear(accesses, accesses.loads[v].offset, c.depth) != 1 for v in loads):
        return "8-bit integers that are not adjacent along the depth"
    depth = extent(accesses, c.depth)
    deep = isinstance(depth, int) and depth >= _DEEPEST_BYTES
    return f"sums of {depth} products of 8-bit integers may pass 32 bits" if deep else None


def _bad_sharing(accesses: Accesses, contraction: Contraction) -> str | None:
    """A left factor that only dots read has as many slots in shared memory as there are stages.
    One that is also loaded into registers has one less in Triton (seen in 3.6.0 and 3.7.1), too few
    for Hopper's dots of 64 rows and more: one is left pending when the next copy begins, which
    writes where it reads. On an H100 results were wrong, and others each time, from two stages on,
    in both types, with one product (128 x 128) and with two (64 x 64). Dots of tiles of 32 rows,
    which those of many batches would not be, are awaited. bench/race_left_sums.py shows the slots
    and what goes wrong."""
    rows = extent(accesses, contraction.rows)
    few = isinstance(rows, int) and rows <= _MOST_SHARED and not contraction.batch
    return None if few else _second_reader(accesses, contraction)


def _second_reader(accesses: Accesses, contraction: Contraction) -> str | None:
    """What reads a left factor besides the dot that takes it as it is in memory."""
    if contraction.row_sums:
        return "it sums over a left factor of many rows"
    products = contraction.products
    plain = {p.left_load for p in products} - {None}
    computed = [p.left for p in products if p.left_load is None]
    computed += [p.right for p in products if p.right_load is None]
    shared = plain & needed(accesses.comp.body, computed)
    return "a factor is computed from the left factor of another product" if shared else None


def _bad_reduction(accesses: Accesses, contraction: Contraction) -> str | None:
    body = accesses.comp.body
    if any(body[v].monoid in TUPLES for v in contraction.row_sums):
        return "a reduction of the left factor has several results"
    reductions = {v for v, i in enumerate(body) if isinstance(i, Reduce)}
    if any(reductions & needed(body, body[v].args) for v in reductions):
        return "a reduction depends on another"
    return None


def _bad_store(accesses: Accesses, contraction: Contraction) -> str | None:
    comp, axes = accesses.comp, value_axes(accesses.comp.body)
    if (reason := bad_combining(accesses, contraction)) is not None:
        return reason
    depth = set(contraction.depth)
    if any(depth & store_axes(comp, s, axes) for s in comp.stores):
        return "a result varies along the depth"
    batch = extent(accesses, contraction.batch)
    if isinstance(batch, int) and batch > MAX_GRID_Y:
        return f"a batch of {batch}"
    return None
