"""Rows of a few elements, side by side in memory: a block of them is turned, so that a column of
the block is a vector.

    for 64 rows abreast: for 7 columns: f(x[7 * row + column])
    ->  t = the block, turned
        for 7 columns: for 64 rows abreast: o[column][row] = f(t[column][row])
        the block = o, turned back

Read where they lie, the elements of a vector would be gathered one by one, and scattered.

Longer rows abreast whose results lie along the columns are turned in parts of BAND columns:

    for blocks of 64 columns: for column: for 64 rows abreast: u[column][row] = f(x[column][row])
                              y[row][columns of the block] = u, turned back

A row gets lines that follow each other then. With 16 columns of 128 rows at a time, which wrote
half a line of each row and the other half later, layer norms of 13 x 1500 x 20 x 20 took 18.7 ms on
a Xeon with AVX-512 and two threads, with 64 of 64 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.ir.access import Access, Accesses
from torchweld.ir.nodes import Value

LONGEST = 32  # columns of a row
BAND = 64  # columns of longer rows that are turned at a time, and rows abreast then
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


def turned_stores(accesses: Accesses, lane: str) -> frozenset[int]:
    """Positions of stores of rows abreast along `lane` that go in bands: their results lie side by
    side along the last of several columns, and far apart along the lane. A store at each point
    would touch a line of its own: a layer norm of 53 x 768 x 14 x 14 into channels last took 16 ms
    on a Xeon with AVX-512, two threads, where eager takes 5.8."""
    columns, comp = accesses.frame.columns, accesses.comp
    extent = comp.extent(columns[-1]) if columns else 0
    if not isinstance(extent, int) or extent < BAND or tiles(accesses, lane):
        return frozenset()
    return frozenset(
        n
        for n, (store, access) in enumerate(zip(comp.stores, accesses.stores))
        if store.guard is None
        and store.combine is None
        and not access.refs
        and access.offset.coefficient(columns[-1]) == 1
        and access.offset.coefficient(lane) not in (0, 1)
    )
