"""Predicted seconds of a score nest on a GPU.

    start + gradient * max(bytes / copy speed,
                           bytes that programs load / the rate of the last-level cache,
                           pairs * (products + work on a score) / share of busy units,
                           blocks of keys of a program * what one takes alone)

Scores are worked on between products of the same program: their times add up. `pairs`: of rows and
keys in the blocks that the mask's bound leaves; rows of a block that do not exist count.
"""

from __future__ import annotations

from collections.abc import Container
from math import ceil

from torchweld.codegen.triton.wide import BF16_PRODUCTS
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Cast, Load, Op, Reduce, Value, needed, value_axes
from torchweld.ir.online import Walk
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import hint
from torchweld.templates.attention.gpu.schedule import (
    NestSchedule,
    Work,
    batch_of,
    factor_name,
)
from torchweld.templates.attention.nest import Inner, Outer
from torchweld.templates.pointwise_reduce.price import bytes_of

# Of the tensor cores' rate, beside the work on scores: FlashAttention-2 in Triton reaches 400 to
# 450 TFLOP/s forward on an H100 with heads of 128, and 300 backward. Of float32, 32 heads of 64
# with 1024 keys took 163 us there, of 128 340 us, in the best tile 289.
_SHARE = 0.85
_WIDE_SHARE = 0.55
# Times as long take nests of float32 with two inner products, as gradients are, whatever the tile,
# by their widest depth or columns: parts of four factors are more than registers hold. On an H200,
# both gradients together, 16 heads of 1024 keys: of 64 1000 us, of 128 2500; 256 heads of 32 4270.
_GRADIENT = {32: 2.5, 64: 4.8, 128: 5.8}
# Tiles of fewer rows than wgmma has are mma.sync's, which reaches that share of its rate on Hopper.
_WGMMA_ROWS, _MMA_SYNC = 64, 0.62
_MMA_COLUMNS = 8  # of one instruction
_SAMPLES = 64
# A block of keys of float32 takes a program with one result so long, alone or as one of two on a
# multiprocessor, with depths and columns of 128 together: on an H100 1.8 to 3.0 us in tiles of 16 x
# 64, 2.7 to 4.4 of 64 x 32 (8.3 with unaligned rows and a mask).
_BLOCK_S, _BLOCK_WIDTH = 2.7e-6, 128
_RESIDENT = 2


def seconds(work: Work, s: NestSchedule) -> float:
    pair_s = (_wide_s(work, s) if work.is_wide else products_s(work, _SHARE)) + scores_s(work)
    busy_s = work.points((*work.nest.batch, *work.nest.turns)) * pairs(work, s) * pair_s
    tiles = ceil(work.points(s.rows) / s.block_rows) * s.splits
    if work.nest.turns:
        tiles *= ceil(work.points(s.keys) / s.block_keys)
    programs = work.points(batch_of(work.nest, s)) * tiles
    return start_s(work) + _gradient(work) * max(
        busy_s / busy(work, programs), moved(work) / work.target.dram_bytes_per_s,
        loaded(work, s) / work.target.llc_bytes_per_s, _in_turn_s(work, s, programs),
    )  # fmt: skip


def _in_turn_s(work: Work, s: NestSchedule, programs: int) -> float:
    """Of the blocks of keys of the programs of one multiprocessor, one after the other."""
    if not work.is_wide or work.nest.turns or len(work.nest.outers) != 1:
        return 0.0
    rows = ceil(work.points(s.rows) / s.block_rows) * s.block_rows * work.points(_apart(work, s))
    blocks = ceil(pairs(work, s) / max(1, rows) / s.block_keys / s.splits)
    waves = ceil(programs / (_RESIDENT * work.target.units))
    return waves * blocks * _BLOCK_S * max(1.0, sum(work.widths()) / _BLOCK_WIDTH)


def start_s(work: Work) -> float:
    return work.target.products.forms["triton"].start_us * 1e-6


def moved(work: Work) -> int:
    """Bytes of all that is read and written."""
    named = {*work.comp.reads, *work.comp.writes}
    return sum(bytes_of(work.buffers[n], work.hints) for n in named)


def loaded(work: Work, s: NestSchedule) -> float:
    """Bytes of the keys' factors that all programs load: each does, for its rows."""
    body = work.comp.body
    named = zip((*work.nest.inners, *work.nest.outers), work.widths())
    once = {factor_name(body[p.key], p.key): w * body[p.key].dtype.bytes for p, w in named}
    blocks = work.points(work.nest.batch) * pairs(work, s) / s.block_rows
    return blocks * sum(once.values())


def _wide_s(work: Work, s: NestSchedule) -> float:
    """As `products_s`, of float32. mma.sync's warps lie along the keys: with fewer keys than they
    have columns, several make the same scores."""
    share, again = _WIDE_SHARE / BF16_PRODUCTS, 1.0
    if s.block_rows < _WGMMA_ROWS:
        again = max(1.0, _MMA_COLUMNS * s.num_warps / s.block_keys)
        share *= _MMA_SYNC if work.target.capability >= (9, 0) else 1.0
    scores = sum(work.widths()[: len(work.nest.inners)])
    return products_s(work, share) + (again - 1) * scores / (share * work.target.tensor_fma_per_s)


def _gradient(work: Work) -> float:
    if not work.is_wide or len(work.nest.inners) < 2:
        return 1.0
    return next((n for w, n in _GRADIENT.items() if w >= max(work.widths())), _GRADIENT[128])


def products_s(work: Work, share: float) -> float:
    """Of one row and one key, at that share of the tensor cores' rate. Each walk over the keys
    makes the scores that it needs again."""
    widths, body = dict(zip((*work.nest.inners, *work.nest.outers), work.widths())), work.comp.body
    made = 0
    for walk in work.nest.walks:
        behind = needed(body, walk.reductions)
        made += sum(w for product, w in widths.items() if _is_made(product, walk, behind))
    return made / (share * work.target.tensor_fma_per_s)


def _is_made(product: Inner | Outer, walk: Walk, behind: Container[Value]) -> bool:
    """Whether a walk makes a product; `behind`: all that its reductions are made of."""
    return product.value in (walk.reductions if isinstance(product, Outer) else behind)


def scores_s(work: Work) -> float:
    """What is computed for one row and one key beside products."""
    body, axes = work.comp.body, value_axes(work.comp.body)
    rows, keys = set(work.nest.rows), set(work.nest.keys)
    products = {i.value for i in (*work.nest.inners, *work.nest.outers)}
    inside = [
        i for v, i in enumerate(body)
        if v not in products and axes[v] & keys and axes[v] <= _scored(work)
        and (axes[v] & rows or not rows)
    ]  # fmt: skip
    fma = sum(_cost(i) for i in inside) + 2 * len(work.nest.statistics)
    return fma / work.target.fma_per_s


def _scored(work: Work) -> frozenset[str]:
    return frozenset((*work.nest.batch, *work.nest.rows, *work.nest.keys))


def _cost(instr) -> float:
    if isinstance(instr, Op):
        return TABLE[instr.name].cost
    return 1.0 if isinstance(instr, (Cast, Load, Reduce)) else 0.0


def busy(work: Work, programs: int) -> float:
    """The share of the multiprocessors that have a program, on average."""
    waves = ceil(max(1, programs) / work.target.units)
    return max(1, programs) / (waves * work.target.units)


def pairs(work: Work, s: NestSchedule) -> float:
    """Of rows and keys, for one point of the batch."""
    axis = work.nest.bound.axis
    blocks = ceil(work.points(s.rows) / s.block_rows) * work.points(_apart(work, s))
    every = blocks * s.block_rows * work.points(work.nest.keys)
    if axis is None or not every:
        return every
    length = work.points((axis,))
    samples = [(n + 0.5) / _SAMPLES for n in range(_SAMPLES)]
    counted = sum(keys_of(work, at, length) + s.block_keys for at in samples) / _SAMPLES
    return every * min(1.0, counted / length)


def _apart(work: Work, s: NestSchedule) -> tuple[str, ...]:
    """Axes of rows of which a block has one point."""
    return tuple(a for a in work.nest.rows if a not in s.rows)


def keys_of(work: Work, at: float, length: int) -> float:
    """That count for the row at this part, from 0 to 1, of the `length` rows."""
    low = _value(work, work.nest.bound.low, at, 0)
    high = _value(work, work.nest.bound.high, at, length)
    return max(0.0, min(high, length) - max(low, 0))


def _value(work: Work, index: Affine | None, at: float, default: float) -> float:
    if index is None:
        return default
    terms = [(work.points((a,)) * at, c) for a, c in index.terms]
    return sum(n * hint(c, work.hints) for n, c in terms) + hint(index.const, work.hints)
