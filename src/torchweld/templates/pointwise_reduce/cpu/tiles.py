"""Rows of a few elements, side by side in memory: a block of them is turned, so that a column of
the block is a vector.

    for 64 rows abreast: for 7 columns: f(x[7 * row + column])
    ->  t = the block, turned
        for 7 columns: for 64 rows abreast: o[column][row] = f(t[column][row])
        the block = o, turned back

Read where they lie, the elements of a vector would be gathered one by one, and scattered.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.ir.access import Access, Accesses
from torchweld.ir.nodes import Value

LONGEST = 32  # columns of a row
BYTES = 1 << 13  # of a tile: those of a few buffers stay in the first-level cache


@dataclass(frozen=True, slots=True)
class Tiles:
    """`loads` and positions of `stores` whose blocks of rows are turned; `columns` of a row."""

    loads: frozenset[Value]
    stores: frozenset[int]
    column: str
    columns: int

    def rows(self, accesses: Accesses, most: tuple[int, ...]) -> int:
        """Rows of a block: the first of `most` whose tile is small enough."""
        bytes_each = max(a.bytes for a in accesses.all)
        fitting = [n for n in most if n * self.columns * bytes_each <= BYTES]
        return fitting[0] if fitting else most[-1]


def tiles(accesses: Accesses, lane: str) -> Tiles | None:
    """What is turned where rows are abreast along `lane`; None if nothing is."""
    columns = accesses.frame.columns
    extent = accesses.comp.extent(columns[0]) if len(columns) == 1 else None
    if not isinstance(extent, int) or not 1 < extent <= LONGEST:
        return None
    column, comp = columns[0], accesses.comp
    loads = frozenset(
        v
        for v, access in accesses.loads.items()
        if comp.body[v].guard is None and _is_turned(access, lane, column, extent)
    )
    stores = frozenset(
        n
        for n, (store, access) in enumerate(zip(comp.stores, accesses.stores))
        if store.guard is None
        and store.combine is None
        and _is_turned(access, lane, column, extent)
    )
    return Tiles(loads, stores, column, extent) if loads or stores else None


def _is_turned(access: Access, lane: str, column: str, extent: int) -> bool:
    """Whether rows lie end to end along `lane`."""
    along, across = access.offset.coefficient(lane), access.offset.coefficient(column)
    return (along, across) == (extent, 1) and not access.refs
