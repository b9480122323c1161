"""How a score nest is tiled on a GPU: a table by the number of products, the width of their tiles
and the kind of tensor cores, cut down to what a problem and a device have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Load, Op, value_axes
from torchweld.ir.size import Size, hint, product
from torchweld.targets.target import Target
from torchweld.templates.attention.nest import Nest
from torchweld.templates.pointwise_reduce.gpu.schedule import next_pow2
from torchweld.templates.pointwise_reduce.price import bytes_of

LEAST = 16  # rows, keys, depth and columns of what tensor cores multiply
LARGEST_HEAD = 256
_LONG = 64  # rows or keys of one axis that are worth tiles of their own
_MOST_SPLITS = 8
_LEAST_PER_SHARE = 256  # keys
_SHARED_REST = 2 << 10  # bytes, for reductions over a tile and saved statistics
_ROUNDING = frozenset(("floor", "ceil", "round", "trunc", "floor_div", "remainder"))


@dataclass(frozen=True, slots=True)
class NestSchedule:
    """Tiles of `block_rows` by `block_keys`; depth and columns are whole, in powers of two.
    `rows`, `keys`: the axes that tiles are made of; of other rows a program has one point, and
    walks over the points of other keys one after the other. `cut_stages`: of the loops over blocks
    that masks cut. `splits`: programs that share the keys
    of a tile. `group`: points of the batch whose tiles run at a time, 0 for all."""

    rows: tuple[str, ...]
    keys: tuple[str, ...]
    block_rows: int
    block_keys: int
    num_warps: int
    stages: int
    cut_stages: int = 2
    splits: int = 1
    group: int = 0


# (inner, outer products) -> widest depth or columns -> rows, keys, warps, stages, cut stages.
# Compiled with causal masks, windows, ALiBi, bias and softcap by Triton 3.6 and 3.7: no spills.
Table = Mapping[tuple[int, int], Mapping[int, tuple[int, int, int, int, int]]]

# Hopper's products have 64 rows for each four warps and want 64 columns; the row factors stay in
# shared memory. Two accumulators of 128 x 128 leave registers for 32 keys only, of 128 x 64 none
# for the addresses of loads ahead where there are masks, too. Of tiles 32 wide, ptxas 12.8 dies on
# a loop of two stages between two of one.
_HOPPER: Table = {
    (1, 1): {64: (128, 128, 8, 3, 2), 128: (128, 128, 8, 2, 2), 256: (128, 64, 8, 2, 2)},
    (2, 1): {64: (128, 64, 8, 3, 2), 128: (128, 64, 8, 2, 2), 256: (64, 64, 8, 2, 2)},
    (2, 2): {
        32: (128, 64, 8, 2, 2),
        64: (128, 64, 8, 2, 1),
        128: (128, 32, 8, 3, 2),
        256: (64, 16, 8, 2, 2),
    },
}
# mma.sync has the row factors in registers, too: they and the accumulators limit rows.
_AMPERE: Table = {
    (1, 1): {64: (128, 64, 8, 3, 2), 128: (128, 64, 8, 2, 2), 256: (64, 64, 8, 2, 2)},
    (2, 1): {64: (128, 64, 8, 2, 2), 128: (64, 64, 8, 2, 2), 256: (64, 32, 8, 2, 2)},
    (2, 2): {64: (128, 32, 8, 2, 2), 128: (64, 64, 8, 2, 2), 256: (32, 32, 8, 2, 2)},
}
# Ten rounds of Philox for each score hold some twenty registers; so do addresses of 64 bits beside
# two accumulators, of sizes known at the call only: smaller tiles.
_SMALL: Table = {
    (1, 1): {64: (128, 64, 8, 2, 2), 128: (128, 64, 8, 2, 1), 256: (64, 32, 8, 2, 2)},
    (2, 1): {64: (128, 64, 8, 2, 2), 128: (64, 64, 8, 2, 2), 256: (64, 32, 8, 2, 2)},
    (2, 2): {128: (64, 32, 8, 2, 2), 256: (32, 32, 8, 2, 2)},
}
# float32 in parts of bfloat16 (codegen/triton/wide.py), which are in registers. Masks spill up to
# 150 bytes of heads of 128, of the gradient of their keys 550. Below 64 rows each warp has the
# parts of all rows: of 32 rows in two products with a depth of 256, 768 registers, for which ptxas
# finds no place (8 to 9 KB of a thread in memory, 13 KB stored and 16 KB loaded in each block of
# keys; in tiles of 16 rows up to 0.8 and 0.8).
_FLOAT32_HOPPER: Table = {
    (1, 1): {64: (64, 32, 4, 2, 2), 128: (128, 32, 8, 2, 2), 256: (64, 16, 8, 2, 2)},
    (2, 1): {64: (64, 32, 4, 2, 2), 128: (64, 32, 8, 2, 2), 256: (16, 32, 4, 2, 2)},
    (2, 2): {
        32: (64, 32, 4, 2, 2),
        64: (64, 16, 8, 2, 2),
        128: (16, 32, 4, 2, 2),
        256: (16, 32, 4, 2, 2),
    },
}
_FLOAT32_AMPERE: Table = {
    (1, 1): {64: (64, 16, 8, 2, 2), 128: (32, 32, 4, 2, 2), 256: (32, 16, 8, 2, 2)},
    (2, 1): {64: (64, 16, 8, 2, 2), 128: (32, 16, 4, 2, 2), 256: (16, 32, 4, 2, 2)},
    (2, 2): {128: (32, 32, 8, 2, 2), 256: (16, 32, 4, 2, 2)},
}
# Forward, of float32, where larger tiles leave multiprocessors idle: widest depth or columns ->
# tile. A block of keys takes a program 2 to 3 us, in whatever tile, so what counts is how few there
# are. H100, 2 heads of 64 with 128 keys: 14.3 us in tiles of 64 x 32, 6.6 of 16 x 64; of 141 keys,
# with a bias and columns that are unaligned, 46 us in tiles of 128 x 32, 9.8; a depth of 201: 29 us
# in tiles of 64 x 16, 9.4 of 64 x 64.
_FLOAT32_IDLE = {128: (16, 64, 8, 2, 2), 256: (64, 64, 4, 2, 2)}


def padded(points: Size) -> int:
    """Of a depth or of columns, as tensor cores have them."""
    return max(LEAST, next_pow2(points))


def is_fast(comp: Comp, nest: Nest) -> bool:
    """Whether scores may have the hardware's approximate functions, whose errors are some 1e-7 of
    a score: their operands have 16 bits, and nothing discrete is decided."""
    rounds = any(isinstance(i, Op) and i.name in _ROUNDING for i in comp.body)
    return not rounds and all(comp.body[i.row].dtype.is_low_precision for i in nest.inners)


@dataclass(frozen=True, slots=True)
class Work:
    """A nest that wants tiles."""

    comp: Comp
    buffers: Mapping[str, Buffer]
    nest: Nest
    target: Target
    hints: Mapping[str, int]

    @property
    def is_wide(self) -> bool:
        """Whether some product is one of float32."""
        factors = (*(i.row for i in self.nest.inners), *(o.key for o in self.nest.outers))
        return any(self.comp.body[v].dtype == dtypes.f32 for v in factors)

    def points(self, axes: tuple[str, ...]) -> int:
        """With typical values for symbols."""
        return hint(product(self.comp.extent(a) for a in axes), self.hints)

    def widths(self) -> list[int]:
        """Of the tiles of each depth and each result's columns."""
        parts = [i.depth for i in self.nest.inners] + [o.columns for o in self.nest.outers]
        return [padded(product(self.comp.extent(a) for a in axes)) for axes in parts]


def candidates(work: Work) -> Iterator[NestSchedule]:
    """The default first, then neighbours for a tuner."""
    rows, keys = tile_axes(work, work.nest.rows), tile_axes(work, work.nest.keys)
    first = _fitted(work, NestSchedule(rows, keys, *_tile(work)))
    if _prefers_small(work, first):
        first = _fitted(work, NestSchedule(rows, keys, *_FLOAT32_IDLE[_wider(work, _FLOAT32_IDLE)]))
    k, stages = first.block_keys, first.stages
    seen = []
    for change in ({}, {"block_keys": k // 2}, {"block_keys": 2 * k}, {"stages": stages + 1}):
        s = _finished(work, _fitted(work, replace(first, **change)))
        if s.block_keys >= LEAST and s not in seen:
            seen.append(s)
            yield s


def _prefers_small(work: Work, s: NestSchedule) -> bool:
    """Whether a float32 forward on Hopper, in the tiles of `s`, is for half of the multiprocessors
    at most, shares of the keys counted."""
    forward = len(work.nest.inners) == len(work.nest.outers) == 1 and not work.nest.turns
    if not work.is_wide or not forward or work.target.capability < (9, 0):
        return False
    return 2 * tiles_of(work, s) * _splits(work, s) <= work.target.units


def tiles_of(work: Work, s: NestSchedule) -> int:
    """Of rows, over the batch."""
    return work.points(batch_of(work.nest, s)) * -(-work.points(s.rows) // s.block_rows)


def tile_axes(work: Work, axes: tuple[str, ...]) -> tuple[str, ...]:
    """One long axis, all but whose bounds are then known for a whole tile; else all together."""
    bounds = [b for b in (work.nest.bound.low, work.nest.bound.high) if b is not None]
    bounded = {work.nest.bound.axis}.union(*(b.axes for b in bounds)) & set(axes)
    longest = max(axes, key=lambda a: (a in bounded, work.points((a,))), default=None)
    alone = longest is not None and (len(axes) == 1 or work.points((longest,)) >= _LONG)
    return (longest,) if alone else axes


def _tile(work: Work) -> tuple[int, int, int, int, int]:
    inners, outers = (min(2, len(part)) for part in (work.nest.inners, work.nest.outers))
    by_width = _table(work)[max(inners, outers, 1), max(1, outers)]
    return by_width[_wider(work, by_width)]


def _wider(work: Work, by_width: Mapping[int, object]) -> int:
    """The narrowest that holds the work's depths and columns."""
    return min(w for w in by_width if w >= max(work.widths()))


def _table(work: Work) -> Table:
    body, hopper = work.comp.body, work.target.capability >= (9, 0)
    if work.is_wide:
        return _FLOAT32_HOPPER if hopper else _FLOAT32_AMPERE
    random = any(isinstance(i, Op) and i.name == "philox" for i in body)
    varying = not all(isinstance(a.extent, int) for a in work.comp.axes)
    if random or (varying and len(work.nest.outers) > 1):
        return _SMALL
    return _HOPPER if hopper else _AMPERE


def _fitted(work: Work, s: NestSchedule) -> NestSchedule:
    """No larger than the problem, and in shared memory."""
    rows = min(s.block_rows, padded(work.points(s.rows)))
    keys = min(s.block_keys, padded(work.points(s.keys)))
    warps = max(4, s.num_warps * rows // s.block_rows)
    s = replace(s, block_rows=rows, block_keys=keys, num_warps=warps)
    while shared_bytes(work, s) > work.target.shared_bytes:
        if s.stages > 1:
            s = replace(s, stages=s.stages - 1)
        elif s.block_keys > LEAST:
            s = replace(s, block_keys=s.block_keys // 2, stages=2)
        elif s.block_rows > LEAST:
            s = replace(s, block_rows=s.block_rows // 2, stages=2)
        else:
            break
    return s


def shared_bytes(work: Work, s: NestSchedule) -> int:
    """An estimate of what a program keeps in shared memory: row factors, and as many blocks of key
    factors and of what is loaded for each score as there are stages."""
    body, axes = work.comp.body, value_axes(work.comp.body)
    inners, outers = work.nest.inners, work.nest.outers
    depths = [padded(product(work.comp.extent(a) for a in i.depth)) for i in inners]
    columns = [padded(product(work.comp.extent(a) for a in o.columns)) for o in outers]
    rows = {i.row: s.block_rows * w * body[i.row].dtype.bytes for i, w in zip(inners, depths)}
    sides = [(i.key, w) for i, w in zip(inners, depths)] + [
        (o.key, w) for o, w in zip(outers, columns)
    ]
    # One buffer's tile is in shared memory once: as a key factor of an inner and of an outer.
    keys = {factor_name(body[v], v): s.block_keys * w * body[v].dtype.bytes for v, w in sides}
    scores = [
        s.block_rows * s.block_keys * i.dtype.bytes
        for v, i in enumerate(body)
        if isinstance(i, Load) and axes[v] & set(s.rows) and axes[v] & set(s.keys)
    ]
    again = s.stages if work.nest.turns else 1
    again_bytes = again * sum(rows.values())
    return again_bytes + s.stages * (sum(keys.values()) + sum(scores)) + _SHARED_REST


def factor_name(instr, value: int) -> object:
    if not isinstance(instr, Load):
        return value
    return instr.buffer, *(e.const for e in instr.index if isinstance(e, Affine))


def _finished(work: Work, s: NestSchedule) -> NestSchedule:
    return replace(s, splits=_splits(work, s), group=group_of(work, s))


def batch_of(nest: Nest, s: NestSchedule) -> tuple[str, ...]:
    """Axes of which a program has one point."""
    return (*nest.batch, *(a for a in nest.rows if a not in s.rows))


def _splits(work: Work, s: NestSchedule) -> int:
    """Shares of the keys until half of the multiprocessors have a program: more cost more to merge
    than they save (measured on an H100). Counters of tiles are of known length."""
    known = all(isinstance(work.comp.extent(a), int) for a in (*work.nest.batch, *work.nest.rows))
    if not known or work.nest.turns or len(work.nest.walks) > 1 or s.keys != work.nest.keys:
        return 1
    wanted = next_pow2(-(-work.target.units // (2 * max(1, tiles_of(work, s)))))
    return max(1, min(_MOST_SPLITS, wanted, work.points(s.keys) // _LEAST_PER_SHARE))


def group_of(work: Work, s: NestSchedule) -> int:
    """As many points of the batch as have their keys in half of the last-level cache; rows that
    share keys are neighbours."""
    batch = batch_of(work.nest, s)
    sharing = work.points(batch) // max(1, work.points(work.nest.batch))
    named = {work.comp.body[p.key] for p in (*work.nest.inners, *work.nest.outers)}
    buffers = {i.buffer for i in named if isinstance(i, Load)}
    moved = sum(bytes_of(work.buffers[b], work.hints) for b in buffers)
    if 2 * moved <= work.target.llc_bytes:
        return 0
    each = max(1, moved // max(1, work.points(work.nest.batch)))
    return max(1, work.target.llc_bytes // (2 * each)) * sharing
