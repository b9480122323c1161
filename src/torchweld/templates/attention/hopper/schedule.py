"""How a score nest is tiled on Hopper: `groups` of four warps with 64 rows each share blocks of
keys, which TMA copies into two rings of `stages`, one of each factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Load, Value, value_axes
from torchweld.ir.size import product
from torchweld.templates.attention.gpu.schedule import (
    NestSchedule,
    Work,
    batch_of,
    group_of,
    padded,
    tile_axes,
)
from torchweld.templates.attention.nest import Nest
from torchweld.templates.gemm.hopper.schedule import SHARED_BYTES, Window, window

ROWS = 64  # of a group of warps: what one instruction multiplies
MOST_STAGES = 4


@dataclass(frozen=True, slots=True)
class HopperSchedule(NestSchedule):
    """`block_rows`: of one of `groups`. `num_warps`: of one group."""

    groups: int = 2

    @property
    def tile_rows(self) -> int:
        """Of a program."""
        return self.groups * self.block_rows


@dataclass(frozen=True, slots=True)
class Sides:
    """The axes of one factor as `window` wants them: a batch, and two sides by name."""

    batch: tuple[str, ...]
    rows: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    depth: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """What TMA copies: the row factor, and the key factors of the inner and the outer product."""

    rows: Window
    keys: Window
    values: Window


def windows_of(accesses: Accesses, nest: Nest, s: NestSchedule) -> Windows | str:
    """Of a nest with one product of each kind; why TMA cannot make them."""
    (inner,), (outer,), batch = nest.inners, nest.outers, batch_of(nest, s)
    found = [
        _window(accesses, inner.row, Sides(batch, rows=s.rows, depth=inner.depth), "rows", "depth"),
        _window(accesses, inner.key, Sides(batch, keys=s.keys, depth=inner.depth), "keys", "depth"),
        _window(
            accesses, outer.key, Sides(batch, keys=s.keys, columns=outer.columns), "keys", "columns"
        ),
    ]
    refused = [w for w in found if isinstance(w, str)]
    return refused[0] if refused else Windows(*found)


def _window(accesses: Accesses, load: Value, sides: Sides, *names: str) -> Window | str:
    instr = accesses.comp.body[load]
    if not isinstance(instr, Load) or instr.guard is not None:
        return "a factor is computed before it is multiplied"
    return window(accesses, sides, accesses.loads[load], instr.dtype, names)


# Widest depth or columns -> groups, keys of a block. The scores of a block, the result, and the
# shares that are multiplied meanwhile are in registers. H100, 64 heads of 3840 keys, TFLOP/s: heads
# of 64 in three groups 506, in two 438, with 64 keys 450 and 379; of 128 628, with 64 keys 562.
_TILES: Mapping[int, tuple[int, int]] = {64: (3, 128), 128: (2, 128), 256: (2, 64)}


def candidates(work: Work) -> Iterator[HopperSchedule]:
    """The default first, then neighbours for a tuner."""
    groups, keys = _TILES[min(w for w in _TILES if w >= max(work.widths()))]
    loaded = _loaded_bytes(work)
    if loaded > 4:  # 128 numbers of 64 bits spill, in two groups too
        keys = 64
    if loaded or work.nest.bound.low is not None:  # spill 300 to 600 bytes in three groups
        groups = 2
    tries = [(groups, keys), (2, keys), (groups, keys // 2)]
    for tile in dict.fromkeys(tries):
        yield _tiled(work, *tile)


def _loaded_bytes(work: Work) -> int:
    """The most bytes that are loaded for each score, or for each key where these are numbers of 64
    bits."""
    body, axes, factors = work.comp.body, value_axes(work.comp.body), _factors(work.nest)
    keys, rows = set(work.nest.keys), set(work.nest.rows)
    loads = [(i, axes[v]) for v, i in enumerate(body) if isinstance(i, Load) and v not in factors]
    counted = [i.dtype.bytes for i, a in loads if a & keys and (a & rows or i.dtype.bytes > 4)]
    return max(counted, default=0)


def _factors(nest: Nest) -> set[Value]:
    return {v for i in nest.inners for v in (i.row, i.key)} | {o.key for o in nest.outers}


def _tiled(work: Work, groups: int, keys: int) -> HopperSchedule:
    rows, over = tile_axes(work, work.nest.rows), tile_axes(work, work.nest.keys)
    keys = min(keys, padded(work.points(over)))
    s = HopperSchedule(rows, over, ROWS, keys, 4, 2, groups=groups)
    while s.stages < MOST_STAGES and fits(work, replace(s, stages=s.stages + 1)):
        s = replace(s, stages=s.stages + 1)
    return replace(s, group=group_of(work, s))


def fits(work: Work, s: HopperSchedule) -> bool:
    return shared_bytes(work, s) <= SHARED_BYTES


def shared_bytes(work: Work, s: HopperSchedule) -> int:
    """Of a program: row factors, and the rings of both key factors."""
    depth, columns = work.widths()
    rows = s.tile_rows * depth
    return dtypes.bf16.bytes * (rows + s.stages * s.block_keys * (depth + columns))


def programs(work: Work, s: HopperSchedule) -> int:
    return work.points(batch_of(work.nest, s)) * -(-work.points(s.rows) // s.tile_rows)


def points(accesses: Accesses, axes: tuple[str, ...]):
    return product(accesses.comp.extent(a) for a in axes)
