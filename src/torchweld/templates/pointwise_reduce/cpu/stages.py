"""The passes over a row, and what each of them computes.

Stage s is one loop nest over the inner axes; a row reduction accumulated in it is known from stage
s + 1 on. What follows a column reduction belongs to FINAL, after all rows. A value that a later
stage needs again is computed again if that is cheap, and kept in a scratch row otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.ir.frame import Frame
from torchweld.ir.monoid import TABLE as MONOIDS
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Const,
    Index,
    Instr,
    Load,
    Op,
    Reduce,
    Ref,
    Scan,
    Value,
    needed,
    operands,
    store_operands,
    value_axes,
)
from torchweld.ir.scalar import TABLE

FINAL = 1 << 30
KEEP_ABOVE = 3.0
GATHER_COST = 4.0  # of a load that is no vector


@dataclass(frozen=True, slots=True)
class Stages:
    """`home`: per value, the first stage in which it can be computed (for a reduction: in which it
    is accumulated). `axes`: per value. `varying`: values that vary along inner axes; the others are
    computed between the loops. `loops[s]`: the varying values that loop s computes, in order;
    `kept`: those that later loops read from scratch. `final`: what follows column reductions, with
    what it needs. `store_homes`: per store."""

    count: int
    home: tuple[int, ...]
    axes: tuple[frozenset[str], ...]
    varying: frozenset[Value]
    loops: tuple[tuple[Value, ...], ...]
    kept: frozenset[Value]
    final: tuple[Value, ...]
    store_homes: tuple[int, ...]


def stages(
    comp: Comp,
    frame: Frame,
    inner: frozenset[str],
    keep: bool = True,
    jumping: frozenset[Value] = frozenset(),
) -> Stages:
    """`inner`: the axes that loops run over in a row. `keep` False: compute everything again.
    `jumping`: loads whose neighbours in a row are not neighbours in memory."""
    axes = tuple(value_axes(comp.body))
    home = _homes(comp, frame)
    store_homes = tuple(
        max(home_of(v, comp, frame, home) for v in store_operands(s)) for s in comp.stores
    )
    varying = frozenset(v for v, a in enumerate(axes) if a & inner)
    count = 1 + max((h for h in (*home, *store_homes) if h < FINAL), default=0)
    walk = _Walk(comp, home, store_homes, varying, keep, jumping)
    loops = tuple(walk.loop(s) for s in range(count))
    return Stages(
        count,
        home,
        axes,
        varying,
        loops,
        frozenset(walk.kept),
        _final(comp, frame, store_homes),
        store_homes,
    )


def home_of(value: Value, comp: Comp, frame: Frame, home) -> int:
    """The first stage at whose start (or within which) `value` is known."""
    if value in frame.column_reductions:
        return FINAL
    return home[value] + isinstance(comp.body[value], Reduce)


def _homes(comp: Comp, frame: Frame) -> tuple[int, ...]:
    home: list[int] = []
    for instr in comp.body:
        home.append(max((home_of(v, comp, frame, home) for v in operands(instr)), default=0))
    return tuple(home)


def _final(comp: Comp, frame: Frame, store_homes: tuple[int, ...]) -> tuple[Value, ...]:
    """Everything that the stores of FINAL need, from column reductions on, in order."""
    last = [v for s, h in zip(comp.stores, store_homes) if h == FINAL for v in store_operands(s)]
    return tuple(sorted(needed(comp.body, last, stop=frame.column_reductions)))


class _Walk:
    """Through the stages in order, remembering what earlier loops computed."""

    def __init__(self, comp, home, store_homes, varying, keep, jumping) -> None:
        self.comp, self.home, self.store_homes = comp, home, store_homes
        self.varying, self.keep, self.jumping = varying, keep, jumping
        self.computed: set[Value] = set()
        self.kept: set[Value] = set()

    def loop(self, stage: int) -> tuple[Value, ...]:
        found: set[Value] = set()
        for root in self._roots(stage):
            self._need(root, stage, found)
        self.computed |= found
        return tuple(sorted(found))

    def _roots(self, stage: int) -> list[Value]:
        """Arguments of this stage's reductions, and what its stores use."""
        reductions = [
            i for i, h in zip(self.comp.body, self.home) if h == stage and isinstance(i, Reduce)
        ]
        stores = [s for s, h in zip(self.comp.stores, self.store_homes) if h == stage]
        return [v for i in reductions for v in i.args] + [
            v for s in stores for v in store_operands(s)
        ]

    def _need(self, root: Value, stage: int, found: set[Value]) -> None:
        """Adds what `root` takes in this stage, depth first; chains are thousands of values
        long."""
        todo = [root]
        while todo:
            value = todo.pop()
            if value in found or value not in self.varying:
                continue
            found.add(value)
            if value in self.computed and self._keeps(value):
                self.kept.add(value)
            else:
                todo.extend(reversed(operands(self.comp.body[value])))

    def _keeps(self, value: Value) -> bool:
        if value in self.kept or isinstance(self.comp.body[value], Scan):
            return True
        return self.keep and self._costs_more(value, KEEP_ABOVE)

    def _costs_more(self, value: Value, limit: float) -> bool:
        """Whether computing `value` again from memory and kept values takes more than `limit`
        multiply-adds. What it uses twice counts twice."""
        cost, todo = 0.0, [value]
        while todo and cost <= limit:
            value = todo.pop()
            if value in self.kept:
                cost += 1.0
            elif value in self.varying:
                jumps = value in self.jumping  # each element is a cache line, loaded again
                cost += GATHER_COST if jumps else own_cost(self.comp.body[value])
                todo.extend(operands(self.comp.body[value]))
        return cost > limit


def own_cost(instr: Instr) -> float:
    """Multiply-adds per element that an instruction is worth on a CPU."""
    if isinstance(instr, Op):
        return TABLE[instr.name].cost
    if isinstance(instr, Load):
        gathers = any(isinstance(i, Ref) for i in instr.index) or instr.guard is not None
        return GATHER_COST if gathers else 1.0
    if isinstance(instr, Cast):
        return 4.0 if instr.dtype.is_low_precision else 0.5
    if isinstance(instr, (Reduce, Scan)):
        return MONOIDS[instr.monoid].cost
    return 0.0 if isinstance(instr, (Const, Index)) else 1.0
