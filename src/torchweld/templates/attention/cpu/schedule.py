"""How a score nest runs on a CPU (nest.h): its tiles, and what of it this template makes.

    for batch, for tiles of rows                   shared by the threads
      pack the rows' factors
      for walks, for tiles of keys that count      (the keys' outer axes one by one)
        pack the keys' factors
        for parts of the rows:  scores, what follows row by row, weights times values
      what follows the sums
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.ir import size
from torchweld.ir.access import Accesses, unmerged
from torchweld.ir.nodes import Buffer, Comp, Reduce, needed, store_axes, value_axes
from torchweld.ir.size import Size
from torchweld.targets.target import Target
from torchweld.templates.attention.nest import Nest, nest_of

KEYS = 128  # of a tile: a panel of values is 32 KB with the widest vectors, and stays in L1
_PART = 48  # rows whose scores are worked on together
_MOST_ROWS = 96  # more do not make packing noticeably cheaper (8 % of the time)
_GROUP = 6  # rows in registers
_TILES = 3  # of rows for each thread


@dataclass(frozen=True, slots=True)
class NestRoles:
    """`nest`: the form of `accesses.comp`; `key`: the axis of keys that is tiled, `over`: the
    others."""

    nest: Nest
    accesses: Accesses
    key: str
    over: tuple[str, ...]

    @property
    def comp(self) -> Comp:
        return self.accesses.comp

    def points(self, axes: tuple[str, ...]) -> Size:
        return size.product(self.comp.extent(a) for a in axes)


@dataclass(frozen=True, slots=True)
class NestTiles:
    """`rows` of a tile, `part` of them whose scores are in the cache together, `group` of these in
    registers; `keys` of a tile."""

    rows: int
    part: int
    group: int
    keys: int

    @property
    def few(self) -> bool:
        """Whether each key serves one group of rows: packing it would take longer than reading."""
        return self.rows == self.group


def roles_of(
    comp: Comp, buffers: Mapping[str, Buffer], hints: Mapping[str, int]
) -> NestRoles | None:
    """The score nest that `comp` is, None if it is none."""
    nest = nest_of(comp)
    if nest is None:
        return None
    key = nest.bound.axis or max(nest.keys, key=lambda a: size.hint(comp.extent(a), hints))
    over = tuple(a for a in nest.keys if a != key)
    return NestRoles(nest, unmerged(comp, buffers), key, over)


def unsupported(roles: NestRoles) -> str | None:
    """Why this template does not make a nest; None: it does."""
    comp, nest = roles.comp, roles.nest
    if any(len(i.depth) != 1 for i in nest.inners):
        return "a product of the scores sums over several axes"
    if any(len(o.columns) > 1 for o in nest.outers):
        return "the values have several axes of columns"
    reduces = {v: i for v, i in enumerate(comp.body) if isinstance(i, Reduce)}
    if any(i.dtype != dtypes.f32 for i in reduces.values()):
        return "a reduction is not in float32"
    if any(reduces[v].monoid not in ("max", "sum") for v in nest.statistics):
        return "a reduction of the scores is neither a maximum nor a sum"
    factors = [f for i in nest.inners for f in (i.row, i.key)] + [o.key for o in nest.outers]
    if any(v in reduces for v in needed(comp.body, factors)):
        return "a factor is the result of another reduction"
    if not nest.turns and any(a not in _column_sets(nest) for a in _stored_columns(roles)):
        return "one store has the columns of several products"
    return None


def _column_sets(nest: Nest) -> set[frozenset[str]]:
    return {frozenset(), *(frozenset(o.columns) for o in nest.outers)}


def _stored_columns(roles: NestRoles) -> list[frozenset[str]]:
    axes, nest = value_axes(roles.comp.body), roles.nest
    rows = frozenset(nest.batch) | frozenset(nest.rows)
    return [store_axes(roles.comp, s, axes) - rows for s in roles.comp.stores]


def tiles_of(roles: NestRoles, target: Target, hints: Mapping[str, int]) -> NestTiles:
    """Rows as many as the core's cache holds with their sums and a tile of keys, but a few tiles
    for each thread."""
    rows = roles.points(roles.nest.rows)
    group = _group(rows) if isinstance(rows, int) else _GROUP
    wide = sum(size.hint(w, hints, 64) for w in widths(roles))
    fitting = target.row_bytes // (4 * wide) - KEYS
    batch = max(1, size.hint(roles.points(roles.nest.batch), hints))
    shared = size.hint(rows, hints) * batch // (_TILES * target.units)
    most = min(_MOST_ROWS, max(_PART, fitting), max(_PART, shared))
    if isinstance(rows, int):
        most = min(most, rows)
    part = _whole(min(_PART, most), group)
    return NestTiles(_whole(most, part), part, group, KEYS)


def widths(roles: NestRoles) -> list[Size]:
    """Depths and columns of all products."""
    nest = roles.nest
    return [roles.points(i.depth) for i in nest.inners] + [
        roles.points(o.columns) for o in nest.outers
    ]


def _group(rows: int) -> int:
    """Rows in registers: of few, as many as make whole groups."""
    rows = max(1, rows)
    return -(-rows // -(-rows // _GROUP)) if rows <= 2 * _GROUP else _GROUP


def _whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit


