"""What a walk over the keys computes, loop by loop.

Stage s is one loop over the keys of a row in a tile; a maximum that is taken in it, and that others
of the walk depend on, is known from stage s + 1 on. What a later stage needs of an earlier one is
kept in an array, if it is float32 arithmetic; positions and conditions are computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.ir.nodes import Cast, Instr, Load, Op, Reduce, Value, needed, operands, value_axes
from torchweld.ir.online import Walk
from torchweld.templates.attention.cpu.schedule import NestRoles
from torchweld.templates.attention.nest import Inner, Outer


@dataclass(frozen=True, slots=True)
class Stages:
    """Of one walk. `inners`, `outers`: the products in it; `statistics`: its other reductions.
    `homes`: the stage in which each value is first known; `loops[s]`: the values along the keys
    that stage s computes, in order; `kept`: those that later stages read from an array. `roots[s]`:
    what it gives to reductions: arguments of statistics, and weights."""

    walk: Walk
    inners: tuple[Inner, ...]
    outers: tuple[Outer, ...]
    statistics: tuple[Value, ...]
    homes: Mapping[Value, int]
    loops: tuple[tuple[Value, ...], ...]
    kept: frozenset[Value]
    roots: tuple[tuple[Value, ...], ...]

    @property
    def weights(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(o.weight for o in self.outers))


def stages_of(roles: NestRoles, walk: Walk) -> Stages:
    nest, body = roles.nest, roles.comp.body
    outers = tuple(o for o in nest.outers if o.value in walk.reductions)
    statistics = tuple(v for v in walk.reductions if v in nest.statistics)
    roots = [body[v].args[0] for v in statistics] + [o.weight for o in outers]
    behind = needed(body, roots, stop=_finished(roles))
    inners = tuple(i for i in nest.inners if i.value in behind)
    homes = _homes(roles, walk, behind)
    count = 1 + max((homes[r] for r in roots), default=0)
    each = tuple(
        tuple(dict.fromkeys(r for r in roots if homes[r] == s)) for s in range(count)
    )
    loops, kept = _loops(roles, homes, each)
    return Stages(walk, inners, outers, statistics, homes, loops, kept, each)


def _finished(roles: NestRoles) -> set[Value]:
    return {v for v, i in enumerate(roles.comp.body) if isinstance(i, Reduce)}


def _homes(roles: NestRoles, walk: Walk, behind: set[Value]) -> dict[Value, int]:
    body, homes = roles.comp.body, {}
    finished = _finished(roles)
    for value in sorted(behind | set(walk.reductions)):
        instr = body[value]
        if value in finished and value not in walk.reductions:
            homes[value] = 0
            continue
        home = max((homes.get(v, 0) for v in operands(instr)), default=0)
        homes[value] = home + (value in finished)
    return homes


def _loops(roles: NestRoles, homes: Mapping[Value, int], roots: tuple[tuple[Value, ...], ...]):
    """The values of each stage, and what they find in arrays."""
    body, axes = roles.comp.body, value_axes(roles.comp.body)
    keys, finished = frozenset(roles.nest.keys), _finished(roles)
    made: set[Value] = set()
    kept: set[Value] = set()
    loops = []
    for mine in roots:
        found, todo = set(), [r for r in mine if axes[r] & keys]
        while todo:
            value = todo.pop()
            if value in found:
                continue
            found.add(value)
            if value in made and _is_kept(body[value]):
                kept.add(value)
            elif value not in finished:
                todo.extend(v for v in operands(body[value]) if axes[v] & keys)
        made |= found
        loops.append(tuple(sorted(found)))
    return tuple(loops), frozenset(kept)


def _is_kept(instr: Instr) -> bool:
    return isinstance(instr, (Op, Cast, Load)) and instr.dtype == dtypes.f32
