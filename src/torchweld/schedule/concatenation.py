"""Right factors that are several matrices side by side: products of one left factor with different
numbers of columns (queries, keys and values) as one.

    %w = where(column < 2048, load q[n, k], where(column < 2560, load k[n-2048, k], load v[...]))

Each load may be guarded, by what holds in its own columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.ir.nodes import Const, Index, Load, Op, Value
from torchweld.ir.size import Size
from torchweld.schedule.access import Accesses
from torchweld.schedule.contraction import Contraction
from torchweld.schedule.cuda import extent


@dataclass(frozen=True, slots=True)
class Part:
    """The matrix that `load` reads has the columns from `first` on, up to the next part's."""

    first: int
    load: Value


def parts_of(accesses: Accesses, contraction: Contraction, value: Value) -> tuple[Part, ...]:
    """The parts of a 16-bit factor, two or more that differ in where they begin in memory alone;
    none if it is anything else."""
    body, found, first = accesses.comp.body, [], 0
    while isinstance(choice := body[value], Op) and choice.name == "where":
        condition, load, value = choice.args
        found.append(Part(first, load))
        first = _bound(accesses, contraction, condition, "lt")
        if first is None:
            return ()
    found.append(Part(first, value))
    reads = [accesses.loads.get(p.load) for p in found]
    if len(found) == 1 or None in reads or any(r.refs for r in reads):
        return ()
    if len({r.offset.terms for r in reads}) > 1:
        return ()
    ends = (*(p.first for p in found[1:]), extent(accesses, contraction.columns))
    inside = all(_is_inside(accesses, contraction, p, end) for p, end in zip(found, ends))
    return tuple(found) if inside else ()


def _bound(accesses: Accesses, c: Contraction, condition: Value, operation: str) -> int | None:
    """n where `condition` compares the number of a column with n by `operation`."""
    body, compared = accesses.comp.body, accesses.comp.body[condition]
    if not isinstance(compared, Op) or compared.name != operation:
        return None
    position, bound = (body[v] for v in compared.args)
    if not isinstance(position, Index) or not isinstance(bound, Const):
        return None
    if position.map.as_axis != c.columns[0]:
        return None
    width = extent(accesses, c.columns[1:])
    return width * bound.value if isinstance(width, int) else None


def _is_inside(accesses: Accesses, c: Contraction, part: Part, end: Size) -> bool:
    """Whether the guard of a part's load holds in all of its columns."""
    load = accesses.comp.body[part.load]
    todo = [] if not isinstance(load, Load) or load.guard is None else [load.guard]
    while todo:
        guard = todo.pop()
        instr = accesses.comp.body[guard]
        if isinstance(instr, Op) and instr.name == "bit_and":
            todo.extend(instr.args)
            continue
        below, above = (_bound(accesses, c, guard, name) for name in ("lt", "ge"))
        holds = (below is not None and isinstance(end, int) and end <= below) or (
            above is not None and part.first >= above
        )
        if not holds:
            return False
    return True
