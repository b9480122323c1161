"""Sums of runs: values are added up by a place that is read from sorted keys.

    comp [run, columns...]
      %key = load keys[run]
      store.add_runs y[.., place(%key), ..] value

Points of one place follow each other along `run`, so that each sum has one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Const, Instr, Load, Op, Reduce, Scan, Value, needed, value_axes
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, extent, next_pow2

_COLUMNS = 256  # of a warp, eight for each lane
_STEPS = 64  # points that a program walks over, one after the other
_FEWEST_STEPS = 16  # of few points: fewer leave the second kernel as much as the first took
_PROGRAMS = 4  # of a warp each, for each multiprocessor, before a walk has more steps than those
_STRETCHES = 4096  # about; more have more points
_ENTRIES = 4096  # points of a tile of sums that are left


@dataclass(frozen=True, slots=True)
class Walk:
    """A program takes `stretches` of `steps` points each, and `columns`."""

    steps: int
    stretches: int
    columns: int
    num_warps: int = 1


@dataclass(frozen=True, slots=True)
class Runs:
    """`keys`: the load of the sorted keys, along the axis `run`, which are places less `offset`;
    `rows`: the places that there are, `step` elements apart. Places from `rows` on are nobody's."""

    accesses: Accesses
    keys: Value
    run: str
    rows: int
    step: int
    offset: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.accesses.comp.axes if a.name != self.run)

    @property
    def length(self) -> int:
        return self.accesses.comp.extent(self.run)

    @property
    def width(self) -> int:
        return extent(self.accesses, self.columns)

    def entries(self, walk: Walk) -> int:
        """Sums that stretches leave: of the first run and of the last."""
        return 2 * -(-self.length // walk.steps)


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
    made_of = needed(comp.body, [place])
    loads = [v for v in made_of if isinstance(comp.body[v], Load)]
    along = value_axes(comp.body)[place]
    known = all(isinstance(a.extent, int) for a in comp.axes) and isinstance(step, int)
    if len(loads) != 1 or len(along) != 1 or not known or not shape:
        return None
    (run,) = along
    keys = accesses.loads[loads[0]]
    plain = not keys.refs and keys.offset.coefficient(run) == 1 and keys.offset.const == 0
    if not plain or access.offset.coefficient(run) != 0:
        return None
    return Runs(accesses, loads[0], run, shape[0], step, _offset(comp.body, made_of))


def _offset(body: Sequence[Instr], values: Iterable[Value]) -> int:
    """What is added to a key: minimum(maximum(key + 32768, 0), rows - 1)."""
    sums = (body[v] for v in values if isinstance(body[v], Op) and body[v].name == "add")
    terms = (body[a] for op in sums for a in op.args)
    return sum(t.value for t in terms if isinstance(t, Const))


def walk_of(runs: Runs, units: int) -> Walk:
    """`units`: multiprocessors, for each of which there should be some programs. 8000 points of 333
    columns in walks of 64 are 250 warps, and took an H200 22 us for 11 MB."""
    columns, steps = min(_COLUMNS, next_pow2(runs.width)), _STEPS
    while runs.length > _STRETCHES * steps:
        steps *= 2
    stretches, blocks = _COLUMNS // columns, -(-runs.width // columns)
    while steps > _FEWEST_STEPS and runs.length * blocks < _PROGRAMS * units * steps:
        steps //= 2
    while stretches > 1 and runs.length * blocks < 2 * units * steps * stretches:
        stretches //= 2
    return Walk(steps, stretches, columns)


def schedules(runs: Runs, walk: Walk, units: int) -> tuple[Schedule, Schedule]:
    """The tiles of the walk, and of the scan over what it leaves: few columns each, so that
    there are programs for all multiprocessors."""
    rows, columns = (runs.run,), runs.columns
    first = Schedule("grid", rows, columns, walk.stretches, walk.columns, walk.num_warps)
    block = min(8, next_pow2(-(-runs.width // units)))
    entries = min(next_pow2(runs.entries(walk)), _ENTRIES // block)
    return first, Schedule("grid", rows, columns, entries, block, 4)
