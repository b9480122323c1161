"""Right factors that are several matrices side by side: products of one left factor with different
numbers of columns (queries, keys and values) as one.

    %w = where(column < 2048, load q[n, k], where(column < 2560, load k[n-2048, k], load v[...]))

Each load may be guarded, by what holds in its own columns. A template either chooses the matrix of
each tile (`parts_of`), or is given each matrix with its own epilogue (`pieces_of`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from torchweld.core.once import once
from torchweld.ir.access import Access, Accesses
from torchweld.ir.affine import axis, constant
from torchweld.ir.contraction import Contraction, contraction_of, factor
from torchweld.ir.nodes import Axis, Comp, Const, Index, Load, Op, Store, Value
from torchweld.ir.simplify import drop_dead, simplify
from torchweld.ir.size import Size
from torchweld.ir.substitute import substitute_comp
from torchweld.templates.pointwise_reduce.gpu.schedule import extent


@dataclass(frozen=True, slots=True)
class Part:
    """The matrix that `load` reads has the columns from `first` on, up to the next part's."""

    first: int
    load: Value


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the columns as a Comp of their own, whose right factors are one matrix each."""

    accesses: Accesses
    contraction: Contraction

    @property
    def columns(self) -> Size:
        return extent(self.accesses, self.contraction.columns)


@once(64)  # asked of each of some fifty tiles
def pieces_of(accesses: Accesses, contraction: Contraction) -> tuple[Piece, ...]:
    """The products of each part, from left to right; `accesses` itself where there is one part, or
    where what is done in its columns cannot be told apart."""
    whole = (Piece(accesses, contraction),)
    body = accesses.comp.body
    narrow = [factor(body, p.right) for p in contraction.products]
    if None in narrow or not contraction.columns:
        return whole
    name, *inner = contraction.columns
    width = extent(accesses, tuple(inner))
    firsts = {p.first for v in narrow for p in parts_of(accesses, contraction, v)} - {0}
    if not firsts:
        return whole
    cuts = (0, *(first // width for first in sorted(firsts)), accesses.comp.extent(name))
    pieces = tuple(_cut(accesses, name, first, end) for first, end in pairwise(cuts))
    sides = {p and (p.contraction.rows, p.contraction.columns) for p in pieces}
    return pieces if sides == {(contraction.rows, contraction.columns)} else whole


def _cut(accesses: Accesses, name: str, first: int, end: int) -> Piece | None:
    """The columns from `first` up to `end`, along the outermost axis of the columns; None where
    what is left is no product."""
    axes = tuple(Axis(name, end - first) if a.name == name else a for a in accesses.comp.axes)
    images = {name: axis(name) + constant(first)}
    comp = simplify(substitute_comp(accesses.comp, axes, images))
    kept = [n for n, s in enumerate(comp.stores) if not _is_skipped(comp, s)]
    comp = drop_dead(replace(comp, stores=tuple(comp.stores[n] for n in kept)))
    loads = {v: _read(i) for v, i in enumerate(comp.body) if isinstance(i, Load)}
    if None in loads.values():
        return None
    stores = (_written(s, accesses.stores[n]) for n, s in zip(kept, comp.stores))
    cut = Accesses(comp, accesses.frame, loads, tuple(stores))
    found = contraction_of(cut)
    return found and Piece(cut, found)


def _read(load: Load) -> Access | None:
    """None for a computed place."""
    offset, *refs = load.index
    return None if refs else Access(load.buffer, offset, (), load.dtype.bytes)


def _written(store: Store, whole: Access) -> Access:
    """Of a store that was `whole` before the cut."""
    offset, *refs = store.index
    moved = ((r.value, stride) for r, (_, stride) in zip(refs, whole.refs))
    return replace(whole, offset=offset, refs=tuple(moved))


def _is_skipped(comp: Comp, store: Store) -> bool:
    """Whether the guard of a store never holds."""
    return store.guard is not None and isinstance(comp.body[store.guard], Const)


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
