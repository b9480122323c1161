"""How a score nest is tiled on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.nodes import Comp, Op, Value
from torchweld.ir.size import Size, hint, product
from torchweld.targets.target import Target
from torchweld.templates.attention.nest import Nest
from torchweld.templates.pointwise_reduce.gpu.schedule import next_pow2

LEAST = 16  # rows, keys, depth and columns of what tensor cores multiply
_LONG = 64  # rows or keys of one axis that are worth tiles of their own
_MOST_SPLITS = 8
_LEAST_PER_SHARE = 256  # keys
_ROUNDING = frozenset(("floor", "ceil", "round", "trunc", "floor_div", "remainder"))


@dataclass(frozen=True, slots=True)
class NestSchedule:
    """Tiles of `block_rows` by `block_keys`; depth and columns are whole, in powers of two.
    `rows`, `keys`: the axes that tiles are made of; of other rows a program has one point, and
    walks over the points of other keys one after the other. `splits`: programs that share the keys
    of a tile. `group`: points of the batch whose tiles run at a time."""

    rows: tuple[str, ...]
    keys: tuple[str, ...]
    block_rows: int
    block_keys: int
    num_warps: int
    stages: int
    splits: int = 1
    group: int = 1


def padded(points: Size) -> int:
    """Of a depth or of columns, as tensor cores have them."""
    return max(LEAST, next_pow2(points))


def is_fast(comp: Comp, nest: Nest) -> bool:
    """Whether scores may have the hardware's approximate functions, whose errors are some 1e-7 of
    a score: their operands have 16 bits, and nothing discrete is decided."""
    rounds = any(isinstance(i, Op) and i.name in _ROUNDING for i in comp.body)
    return not rounds and all(comp.body[i.row].dtype.is_low_precision for i in nest.inners)


def candidates(
    comp: Comp, nest: Nest, target: Target, hints: Mapping[str, int]
) -> Iterator[NestSchedule]:
    yield NestSchedule(nest.rows, nest.keys, 64, 64, 4, 2)
