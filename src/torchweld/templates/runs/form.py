"""Sums of runs: values are added up by a place that is read from sorted keys.

    comp [run, columns...]
      %key = load keys[run]
      store.add_runs y[.., place(%key), ..] value

Points of one place follow each other along `run`, so that each sum has one order.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Load, Reduce, Scan, Value, needed, value_axes
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, extent, next_pow2

_POINTS, _FEWEST = 4096, 1024  # of a tile
_COLUMNS = 32
_ENTRIES = 4096  # points of a tile of sums that tiles have left


@dataclass(frozen=True, slots=True)
class Runs:
    """`keys`: the load of the sorted keys, along the axis `run`; `rows`: the places that there are,
    `step` elements apart. Keys from `rows` on are nobody's."""

    accesses: Accesses
    keys: Value
    run: str
    rows: int
    step: int

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.accesses.comp.axes if a.name != self.run)

    @property
    def length(self) -> int:
        return self.accesses.comp.extent(self.run)

    @property
    def width(self) -> int:
        return extent(self.accesses, self.columns)

    def tiles(self, schedule: Schedule) -> int:
        return -(-self.length // schedule.block_rows)


def runs_of(accesses: Accesses, shape: tuple) -> Runs | None:
    """`accesses` of a Comp, `shape` of what it stores to as the Comp indexes it; None where it adds
    up no runs."""
    comp = accesses.comp
    if len(comp.stores) != 1 or comp.stores[0].combine != "add_runs":
        return None
    (access,) = accesses.stores
    if len(access.refs) != 1 or any(isinstance(i, (Reduce, Scan)) for i in comp.body):
        return None
    place, step = access.refs[0]
    loads = [v for v in needed(comp.body, [place]) if isinstance(comp.body[v], Load)]
    along = value_axes(comp.body)[place]
    known = all(isinstance(a.extent, int) for a in comp.axes) and isinstance(step, int)
    if len(loads) != 1 or len(along) != 1 or not known or not shape:
        return None
    (run,) = along
    keys = accesses.loads[loads[0]]
    plain = not keys.refs and keys.offset.coefficient(run) == 1 and keys.offset.const == 0
    if not plain or access.offset.coefficient(run) != 0:
        return None
    return Runs(accesses, loads[0], run, shape[0], step)


def schedule_of(runs: Runs, units: int) -> Schedule:
    """`units`: multiprocessors, for each of which there should be a tile."""
    block, points = min(_COLUMNS, next_pow2(runs.width)), _POINTS
    while points > _FEWEST and runs.length * runs.width < units * points:
        points //= 2
    return Schedule("grid", (runs.run,), runs.columns, points // block, block, points // 1024)


def second_of(runs: Runs, first: Schedule) -> Schedule:
    """Of the sums that tiles leave: two of each."""
    entries = next_pow2(2 * runs.tiles(first))
    block = min(first.block_columns, 8 if entries > 64 else _COLUMNS)
    return Schedule(
        "grid", (runs.run,), runs.columns, min(entries, _ENTRIES // block), block, 4)  # fmt: skip
