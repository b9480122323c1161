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
from torchweld.templates.pointwise_reduce.gpu.schedule import extent, next_pow2

_COLUMNS = 256  # of a warp, eight for each lane
_LANES = 32
_STEPS = 64  # points that a program walks over, one after the other
_FEWEST_STEPS = 16  # of few points: fewer leave the second kernel as much as the first took
_PROGRAMS = 16  # of a warp each, for each multiprocessor, before lanes or steps have more to do
_FEW_PROGRAMS = 2  # for each multiprocessor, before a warp has idle lanes
_ENTRIES = 4096  # elements of a tile of sums that are left
_TILES = 2  # of a level that one program goes through; more are left to a level between


@dataclass(frozen=True, slots=True)
class Walk:
    """A program takes `stretches` of `steps` points each, and `columns`."""

    steps: int
    stretches: int
    columns: int
    num_warps: int = 1


@dataclass(frozen=True, slots=True)
class Level:
    """Sums that stretches of `steps` points have left, of each that of its first run and that of
    its last: `entries` in all, in tiles of `rows` of them and `columns`."""

    steps: int
    entries: int
    rows: int
    columns: int


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

    def entries(self, steps: int) -> int:
        """Sums that stretches of so many points leave: of the first run and of the last."""
        return 2 * -(-self.length // steps)


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
    """`units`: multiprocessors, for each of which there should be many programs, as each waits for
    memory at every few steps. 300,000 points of 4 columns in 293 warps, each lane with 128 steps,
    took an H200 150 us for 10 MB."""
    columns, steps = min(_COLUMNS, next_pow2(runs.width)), _STEPS
    stretches, blocks = _COLUMNS // columns, -(-runs.width // columns)

    def programs(steps: int, stretches: int) -> float:
        return runs.length * blocks / (units * steps * stretches)

    while stretches * columns > max(_LANES, columns) and programs(steps, stretches) < _PROGRAMS:
        stretches //= 2
    while steps > _FEWEST_STEPS and programs(steps, stretches) < _PROGRAMS:
        steps //= 2
    while stretches > 1 and programs(steps, stretches) < _FEW_PROGRAMS:
        stretches //= 2
    return Walk(steps, stretches, columns)


def levels_of(runs: Runs, walk: Walk, units: int) -> tuple[Level, ...]:
    """What adds up the sums that are left; the last has few tiles, and few columns in each, so that
    there are programs for all multiprocessors."""
    entries, columns = runs.entries(walk.steps), min(8, next_pow2(runs.width))
    rows = _ENTRIES // columns
    if entries <= _TILES * rows:
        return (_last(runs, walk.steps, units),)
    between = Level(walk.steps, entries, rows, columns)
    return between, _last(runs, walk.steps * rows // 2, units)


def _last(runs: Runs, steps: int, units: int) -> Level:
    entries, columns = runs.entries(steps), min(8, next_pow2(-(-runs.width // units)))
    return Level(steps, entries, min(next_pow2(entries), _ENTRIES // columns), columns)
