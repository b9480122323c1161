"""Attention inside a Comp, and how it is tiled: the form that generate.py fills.

    comp attention [b:8, h:8, g:4, i:1, d:64, l:4096, e:64] {
      %4 = reduce.sum[d] query[b, 4*h+g, i, d] * key[b, h, l, d]
      ...                                    pointwise over queries and keys: scale, mask
      %8 = reduce.max[l] %7
      %12 = where(%8 == -inf, 0, %8)
      %14 = exp(%7 - %12)
      %15 = reduce.sum[l] %14
      %19 = reduce.sum[l] %14 * value[b, h, l, e]
      ...                                    pointwise over queries and columns: %19 / %15
      store y[b, 4*h+g, i, e] %24
    }

The heads that share keys (g) and the positions of the queries (i) are the rows of a tile: keys and
values are read once for all of them. One pass over the keys keeps a running maximum, and rescales
what it has (online softmax: Milakov and Gimelshein 2018, Dao et al. 2022). Where there are few
tiles, `splits` programs share the keys of one, and the last merges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.ir.contraction import factor
from torchweld.ir.nodes import Comp, Instr, Load, Op, Reduce, Value, value_axes
from torchweld.ir.online import finite_of
from torchweld.ir.size import Size, hint, product
from torchweld.templates.pointwise_reduce.gpu.schedule import next_pow2

LARGEST_HEAD = 256  # columns of a head
MOST_ROWS = 64  # queries that share a head of keys; beyond, others have the better kernels
SHORT = 256  # but for as many rows and keys in all
_LEAST = 16  # rows, columns and depth of what tensor cores multiply
_ROWS = 64  # of a tile at most
_KEYS = 128  # of a block
_MOST_SPLITS = 8
_PROGRAMS = 64  # more shares cost more to merge than they save (measured on an H100)
_STAGES = 3


@dataclass(frozen=True, slots=True)
class Attention:
    """Axis names by role, and the values named above: `scores` (%4), `shifted` (%7), `top` (%8),
    `weight` (%14), `total` (%15), `mix` (%19); `query`, `key`, `value`: 16-bit factors."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    depth: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    scores: Value
    shifted: Value
    top: Value
    weight: Value
    total: Value
    mix: Value
    query: Value
    key: Value
    value: Value


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """Tiles of `block_rows` queries by `block_keys` keys a step; depth and columns are whole, in
    powers of two. `splits`: programs that share the keys of a tile."""

    block_rows: int
    block_keys: int
    block_depth: int
    block_columns: int
    num_warps: int
    stages: int
    splits: int


def attention_of(comp: Comp) -> Attention | None:
    """The attention that `comp` is, None if it is anything else."""
    body = comp.body
    reduces = {v: i for v, i in enumerate(body) if isinstance(i, Reduce)}
    tops = [v for v, i in reduces.items() if i.monoid == "max"]
    if len(reduces) != 4 or len(tops) != 1 or len(comp.stores) != 1:
        return None
    keys, shifted = reduces[tops[0]].axes, reduces[tops[0]].args[0]
    sums = {v: i for v, i in reduces.items() if i.monoid == "sum"}
    scores = [v for v, i in sums.items() if i.axes != keys]
    total = [v for v, i in sums.items() if _is_weight(body, i.args[0], shifted, tops[0])]
    mix = [v for v, i in sums.items() if i.axes == keys and v not in total]
    if not (len(scores) == len(total) == len(mix) == 1):
        return None
    weight = sums[total[0]].args[0]
    first, second = _factors(body, sums[scores[0]]), _factors(body, sums[mix[0]])
    if first is None or second is None or second[0] != weight:
        return None
    parts = tuple(factor(body, v) for v in (*first, second[1]))
    if None in parts or len({body[v].dtype for v in parts}) > 1:
        return None
    roles = _roles(comp, first, second[1], sums[scores[0]].axes, keys)
    return roles and Attention(
        *roles, scores[0], shifted, tops[0], weight, total[0], mix[0], *parts
    )


def _is_weight(body: tuple[Instr, ...], value: Value, shifted: Value, top: Value) -> bool:
    """Whether a value is exp(shifted - where(top == -inf, 0, top))."""
    exp = body[value]
    if not isinstance(exp, Op) or exp.name != "exp":
        return False
    difference = body[exp.args[0]]
    if not isinstance(difference, Op) or difference.name != "sub":
        return False
    minuend, base = difference.args
    return minuend == shifted and finite_of(body, base) == top


def _factors(body: tuple[Instr, ...], total: Reduce) -> tuple[Value, Value] | None:
    product = body[total.args[0]]
    return product.args if isinstance(product, Op) and product.name == "mul" else None


def _roles(
    comp: Comp, first: tuple[Value, Value], value: Value, depth, keys
) -> tuple[tuple[str, ...], ...] | None:
    """Batch, rows, depth, keys and columns; None where an axis has none of these roles."""
    axes = value_axes(comp.body)
    query, key, mixed = (axes[v] for v in (*first, value))
    batch = (query & key) - set(depth)
    rows, columns = query - key, mixed - batch - set(keys)
    every = [batch, rows, frozenset(depth), frozenset(keys), columns]
    expected = key == batch | set(depth) | set(keys) and not columns & (query | key)
    if not expected or sum(map(len, every)) != len(comp.axes):
        return None
    return tuple(tuple(a.name for a in comp.axes if a.name in part) for part in every)


def schedule(
    a: Attention,
    comp: Comp,
    most_shared: int,
    hints: Mapping[str, int] | None = None,
) -> AttentionSchedule:
    """Tiles for `a`: keys are shared until there are `_PROGRAMS`. Measured on an H100. Fewer blocks
    are under way where they would need more than `most_shared` bytes."""
    rows, depth, columns = (extent(comp, axes) for axes in (a.rows, a.depth, a.columns))
    keys = max(1, hint(extent(comp, a.keys), hints or {}))
    block_rows = min(_ROWS, _padded(rows))
    wide = max(_padded(depth), _padded(columns))
    block_keys = min(_KEYS if wide <= 128 else _KEYS // 2, _padded(keys))
    tiles = hint(extent(comp, a.batch), hints or {}) * -(-rows // block_rows)
    splits = min(_MOST_SPLITS, next_pow2(-(-_PROGRAMS // max(1, tiles))), -(-keys // block_keys))
    if not isinstance(extent(comp, a.batch), int):
        splits = 1  # counters are of known length
    warps, stages = (4, _STAGES) if wide <= 128 else (8, 2)
    tiles = AttentionSchedule(
        block_rows, block_keys, _padded(depth), _padded(columns), warps, stages, splits
    )
    while stages > 1 and shared_bytes(a, comp, tiles) > most_shared:
        stages -= 1
        tiles = replace(tiles, stages=stages)
    return tiles


def shared_bytes(a: Attention, comp: Comp, s: AttentionSchedule) -> int:
    """An estimate: for each stage a block of keys and of what is loaded for a score (masks, and
    the integers by which a table of biases is read); of values, which are read later, one less."""
    axes = value_axes(comp.body)
    scores = [
        i.dtype.bytes
        for v, i in enumerate(comp.body)
        if isinstance(i, Load) and axes[v] & set(a.rows) and axes[v] & set(a.keys)
    ]
    item = comp.body[a.key].dtype.bytes
    for_scores = item * s.block_depth + s.block_rows * sum(scores)
    for_values = item * s.block_columns
    return s.block_keys * (s.stages * for_scores + (s.stages - 1) * for_values)


def extent(comp: Comp, axes: tuple[str, ...]) -> Size:
    """Points of several axes."""
    return product(comp.extent(a) for a in axes)


def _padded(points: int) -> int:
    return max(_LEAST, next_pow2(points))
