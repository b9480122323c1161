"""How a score nest is tiled on Hopper: `groups` of four warps with 64 rows each share blocks of
keys, which TMA copies into two rings of `stages`, one of each factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Comp, Instr, Load, Op, Value, value_axes
from torchweld.ir.scalar import TABLE
from torchweld.templates.attention.gpu.price import keys_of
from torchweld.templates.attention.gpu.schedule import (
    NestSchedule,
    Work,
    batch_of,
    factor_name,
    group_of,
    padded,
    tile_axes,
)
from torchweld.templates.attention.nest import Nest
from torchweld.templates.gemm.hopper.schedule import SHARED_BYTES
from torchweld.templates.gemm.hopper.windows import Window, row_window, window

_COPIED = (dtypes.f32, dtypes.bf16, dtypes.f16)
_BALANCED, _MANY = 1.03, 64
_LINE = 128  # bytes of shared memory
ROWS = 64  # of a group of warps: what one instruction multiplies
MOST_STAGES = 4


@dataclass(frozen=True, slots=True)
class HopperSchedule(NestSchedule):
    """`block_rows`: of one of `groups`. `num_warps`: of one group. `overlapped`: the outer products
    of a block are made beside the work on the scores of the next. `programs`: the most there are,
    one on each multiprocessor."""

    groups: int = 2
    overlapped: bool = True
    programs: int = 1

    @property
    def tile_rows(self) -> int:
        """Of a program."""
        return self.groups * self.block_rows


@dataclass(frozen=True, slots=True)
class Sides:
    """The axes of one factor as `window` wants them: a batch, and two sides by name."""

    batch: tuple[str, ...]
    depth: tuple[str, ...]  # or columns
    rows: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """What TMA copies: the factors of each inner product, and the key factor of each outer one. An
    inner and an outer product may have one in common. `numbers`: loads of one number for each key,
    like a statistic that the forward saved: from memory, they would keep the scores waiting. Those
    of few keys come from there all the same: what TMA writes begins at a multiple of 128 bytes."""

    rows: tuple[Window, ...]
    keys: tuple[Window, ...]
    values: tuple[Window, ...]
    numbers: tuple[tuple[Value, Window], ...]


def windows_of(accesses: Accesses, nest: Nest, s: NestSchedule) -> Windows | str:
    """Of a nest; why TMA cannot make them."""
    batch = batch_of(nest, s)
    rows = [_window(accesses, i.row, Sides(batch, i.depth, s.rows), "rows") for i in nest.inners]
    keys, values = (
        [_window(accesses, load, Sides(batch, axes, keys=s.keys), "keys") for load, axes in factors]
        for factors in (
            [(i.key, i.depth) for i in nest.inners], [(o.key, o.columns) for o in nest.outers]
        )
    )  # fmt: skip
    refused = [w for w in (*rows, *keys, *values) if isinstance(w, str)]
    numbers = ((v, _of_keys(accesses, v, batch, s)) for v in key_numbers(accesses.comp, nest))
    numbers = [(v, w) for v, w in numbers if isinstance(w, Window) and _fills_lines(w, s)]
    return refused[0] if refused else Windows(*map(tuple, (rows, keys, values, numbers)))


def _fills_lines(numbers: Window, s: NestSchedule) -> bool:
    return s.block_keys * numbers.dtype.bytes % _LINE == 0


def _of_keys(
    accesses: Accesses, load: Value, batch: tuple[str, ...], s: NestSchedule
) -> Window | str:
    dtype = accesses.comp.body[load].dtype
    return row_window(accesses, accesses.loads[load], dtype, batch, s.keys, ("depth", "keys"))


def key_numbers(comp: Comp, nest: Nest) -> list[Value]:
    """Loads of one number for each key, the same for all rows, that TMA may copy."""
    axes, keys, rows = value_axes(comp.body), set(nest.keys), set(nest.rows)
    factors = _factors(nest)
    return [
        v for v, i in enumerate(comp.body)
        if isinstance(i, Load) and v not in factors and i.guard is None
        and i.dtype in _COPIED and axes[v] & keys and not axes[v] & rows
    ]  # fmt: skip


def _window(accesses: Accesses, load: Value, sides: Sides, name: str) -> Window | str:
    instr = accesses.comp.body[load]
    if not isinstance(instr, Load) or instr.guard is not None:
        return "a factor is computed before it is multiplied"
    return window(accesses, sides, accesses.loads[load], instr.dtype, (name, "depth"))


# (inner, outer products) -> widest depth or columns -> groups, keys of a block. The scores of a
# block, the results, and what is multiplied meanwhile are in registers. Measured on an H100:
# forward, 64 heads of 3840 keys, TFLOP/s: heads of 64 in three groups 506, in two 438, with 64 keys
# 450 and 379; of 128 628, with 64 keys 562. Gradients, 64 heads of 2048, causal, us, Triton's in
# brackets: of queries 123 (146) in three groups, 132 in two; of keys and values 199 (246).
_TILES: Mapping[tuple[int, int], Mapping[int, tuple[int, int]]] = {
    (1, 1): {64: (3, 128), 128: (2, 128), 256: (2, 64)},
    (2, 1): {64: (3, 64), 128: (2, 64)},
    (2, 2): {64: (2, 64), 128: (2, 64)},
}


def candidates(work: Work) -> Iterator[HopperSchedule]:
    """The default first, then neighbours for a tuner; none for products that are too wide."""
    by_width = _TILES.get((len(work.nest.inners), len(work.nest.outers)), {})
    widest, loaded = max(work.widths()), _loaded_bytes(work)
    if not any(w >= widest for w in by_width) or _spills(work, widest, loaded):
        return
    groups, keys = by_width[min(w for w in by_width if w >= widest)]
    if loaded > 4:  # 128 numbers of 64 bits spill, in two groups too
        keys = 64
    bound = work.nest.bound
    if loaded or bound.low is not None:  # spill 300 to 600 bytes in three groups
        groups = 2
    if bound.high is not None and len(work.nest.inners) == 1:  # 72 bytes; causal 120 us, not 127
        groups = 2
    tries = [(groups, keys), (2, keys), (groups, keys // 2)]
    for tile in dict.fromkeys(tries):
        yield _tiled(work, *tile)


def _spills(work: Work, widest: int, loaded: int) -> bool:
    """Two results of 128 columns leave registers for simple scores only: a bias in memory takes 833
    us there (Triton 711), two exponentials 445 (422), one 334 (349)."""
    body, axes = work.comp.body, value_axes(work.comp.body)
    every = {*work.nest.rows, *work.nest.keys}
    functions = [i for v, i in enumerate(body) if axes[v] >= every and _is_function(i)]
    return len(work.nest.outers) > 1 and widest > 64 and (loaded > 0 or len(functions) > 1)


def _is_function(instr: Instr) -> bool:
    """Whether the units for special functions compute it."""
    return isinstance(instr, Op) and TABLE[instr.name].sfu


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
    s = HopperSchedule(rows, over, ROWS, keys, 4, 2, groups=groups, programs=work.target.units)
    s = replace(s, overlapped=len(work.nest.outers) == 1)
    while s.stages < MOST_STAGES and fits(work, replace(s, stages=s.stages + 1)):
        s = replace(s, stages=s.stages + 1)
    return replace(s, group=_balanced(work, s))


def _balanced(work: Work, s: HopperSchedule) -> int:
    """Points of the batch whose tiles come one after the other: few, so that their keys stay in the
    last-level cache, but as many as it takes that no program has much more to do than others. With
    12 of 64 causal heads one had 1.2 times the average: 532 us, not 492."""
    least, batch = group_of(work, s), work.points(batch_of(work.nest, s))
    if not least or work.nest.bound.axis is None or tiles(work, s) > _MANY * s.programs:
        return least
    tries = [least * 2**n for n in range(batch.bit_length()) if least * 2**n < batch]
    loads = {group: _heaviest(work, s, group) for group in (*tries, batch)}
    best = min(loads, key=lambda group: (max(loads[group], _BALANCED), group))
    return best if best < batch else 0


def _heaviest(work: Work, s: HopperSchedule, group: int) -> float:
    """The most that a program has to do, of the average (generate.py says who has which tile)."""
    rows, batch = -(-work.points(s.rows) // s.tile_rows), work.points(batch_of(work.nest, s))
    length = work.points((work.nest.bound.axis,))
    keys = [keys_of(work, (n + 0.5) / rows, length) for n in range(rows)]
    keys = [n + s.block_keys for n in sorted(keys, reverse=True)]
    most = min(s.programs, rows * batch)
    loads = [0.0] * most
    sizes = [min(group, batch - first) for first in range(0, batch, group)]
    for number, count in enumerate(n for size in sizes for n in keys for _ in range(size)):
        turn, place = divmod(number, most)
        loads[most - 1 - place if turn % 2 else place] += count
    return max(loads) * most / sum(loads)


def fits(work: Work, s: HopperSchedule) -> bool:
    return shared_bytes(work, s) <= SHARED_BYTES


def shared_bytes(work: Work, s: HopperSchedule) -> int:
    """Of a program: row factors, and the rings of key factors, each once."""
    inners, outers = work.nest.inners, work.nest.outers
    widths = work.widths()
    rows = {work.comp.body[i.row]: w for i, w in zip(inners, widths)}
    sides = zip((*(i.key for i in inners), *(o.key for o in outers)), widths)
    keys = {factor_name(work.comp.body[v], v): w for v, w in sides}
    each = s.tile_rows * sum(rows.values()) + s.stages * s.block_keys * sum(keys.values())
    numbers = sum(work.comp.body[v].dtype.bytes for v in key_numbers(work.comp, work.nest))
    return dtypes.bf16.bytes * each + s.stages * s.block_keys * numbers


def tiles(work: Work, s: HopperSchedule) -> int:
    return work.points(batch_of(work.nest, s)) * -(-work.points(s.rows) // s.tile_rows)


def dimensions_of(nest: Nest, s: NestSchedule) -> tuple[tuple[str, ...], ...]:
    """Axes that share an index."""
    depths = (*(i.depth for i in nest.inners), *(o.columns for o in nest.outers))
    return batch_of(nest, s), s.rows, s.keys, *depths
