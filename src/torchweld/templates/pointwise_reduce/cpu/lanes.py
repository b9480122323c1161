"""Which axis a kernel with reductions is vectorised along: the cheapest by the steps of its loops.

    steps = times that each value, load and store is taken, over those that one vector takes at once

A load far from its neighbour's is taken alone, and waits where the lines that it touches are gone
when it comes back to them. The first-level cache holds few lines whose distance is a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod

from torchweld.ir import size
from torchweld.ir.access import Access, Accesses
from torchweld.ir.monoid import TABLE as MONOIDS
from torchweld.ir.nodes import Cast, Op, Reduce, Scan, operands, store_axes, value_axes
from torchweld.ir.scalar import TABLE
from torchweld.templates.pointwise_reduce.cpu.tiles import LONGEST, tiles, turned_stores

_VECTOR = 8  # numbers taken at once; only the ratios between lanes matter
_FILLED = 32  # bytes of the vectors that gcc makes, unless it is told to prefer others
# gcc fills a vector with the smallest elements of a loop, and half a vector with what is left.
_LEAST_OF_16_BITS = 16
# Points a step, where each operation waits for the one before. A gradient of a group norm with SiLU
# took 57 ns for each of 8 channels (Zen 4).
_ONE_BY_ONE = 0.25
_ALONE = 2.0  # steps of a number that is loaded and put into its vector
_SHUFFLED = 1.5  # steps of a vector's worth of memory, of which parts are taken
_TURNED = 2.0  # steps of a vector's worth of memory, of a block of rows that is turned
# The same of a band of longer rows, of 32 bits and more: elements of such rows may be gathered,
# which is faster where their lines do not fall into the same sets of a cache. Layer norms of 26 x
# 384 x 28 x 28, one thread of a Xeon with AVX-512, ms: 7.5 gathered, 10.3 in bands, of 53 x 768 x
# 14 x 14 10.3 and 9.3, of 15 x 512 x 32 x 32 28 and 13; in bfloat16, which no instruction gathers,
# 7.1 and 5.8, 7.2 and 6.4, 15 and 6.8.
_BANDED = 96.0
_TAIL = 5  # steps that make one number of a vector of partial results
_SHORT_TAIL = 12  # of a row that is no longer than a vector or two: what is behind it waits
_LINE = 64  # bytes
_NEAR_SETS, _FAR_SETS, _WAYS = 64, 1024, 8  # of a first and a second-level cache, at least
_NEAR_WAIT, _FAR_WAIT = 4.0, 16.0  # steps of a load, from the second level and from beyond it
_STORES_WAIT = 0.5  # of a load's: nothing needs what they leave


@dataclass(frozen=True, slots=True)
class _Loops:
    """`order`: axes of the loops, the innermost first: the lane, `at_once` points of it. `hints`:
    typical values of symbols. `least`: points of a row's lane that are vectorised at all."""

    order: tuple[str, ...]
    at_once: int
    extents: Mapping[str, int]
    columns: frozenset[str]
    hints: Mapping[str, int]
    least: int

    @property
    def lane(self) -> str:
        return self.order[0]

    @property
    def vector(self) -> float:
        """Points that one step takes; loops of a few are unrolled, and vectorised in part."""
        extent = self.extents[self.lane]
        if self.lane not in self.columns and extent < self.least:
            return _ONE_BY_ONE if self.columns else 1.0  # where nothing is reduced, none waits
        return _VECTOR if extent >= _VECTOR else max(1.0, extent / 2)

    def times(self, axes: frozenset[str]) -> float:
        """Steps of what varies along `axes`, hoisted out of the loops that it does not need."""
        alike = self.columns if not axes & self.columns else frozenset()
        points = prod(n for a, n in self.extents.items() if a not in alike)
        if self.lane in axes:
            return points / self.vector
        return points if self.lane in alike else points / self.at_once


def cheapest_lane(accesses: Accesses, block: int, hints: Mapping[str, int]) -> str | None:
    """The row axis along which rows are abreast, `block` at a time; None: the loop runs along the
    columns."""
    rows, columns = accesses.frame.rows, accesses.frame.columns
    if not rows:
        return None
    extents = {a.name: max(1, size.hint(a.extent, hints)) for a in accesses.comp.axes}
    inner, along = tuple(reversed((*rows, *columns))), frozenset(columns)
    least = _LEAST_OF_16_BITS if any(a.bytes == 2 for a in accesses.all) else 1
    choices = [_Loops(inner, extents[inner[0]], extents, along, hints, least)]
    long = [a for a in rows[:-1] if extents[a] >= 2 * _VECTOR]
    for axis in filter(lambda a: _sums_over(accesses, a), (rows[-1], *long)):
        order = (axis, *(a for a in inner if a != axis))
        choices.append(_Loops(order, min(extents[axis], block), extents, along, hints, least))
    return _cheaper(accesses, choices)


def _cheaper(accesses: Accesses, choices: list[_Loops]) -> str | None:
    """The lane of the cheapest; None if that is the first."""
    best = min(choices, key=lambda loops: sum(_steps(accesses, loops)))
    return None if best is choices[0] else best.lane


def longer_lane(accesses: Accesses, block: int, hints: Mapping[str, int]) -> str | None:
    """The axis along which a pointwise kernel is vectorised, `block` points at a time, where its
    last one has fewer than gcc puts into a vector, which are as many as fit of the smallest
    elements. No instruction gathers less than four bytes: those may not jump. None where the last
    one is cheaper, or the only one."""
    *others, last = accesses.frame.rows
    least = _FILLED // min(a.bytes for a in accesses.all)
    extents = {a.name: max(1, size.hint(a.extent, hints)) for a in accesses.comp.axes}
    if extents[last] >= least or any(a.refs for a in accesses.all):
        return None
    inner, none = (last, *reversed(others)), frozenset()
    choices = [_Loops(inner, extents[last], extents, none, hints, least)]
    for axis in (a for a in others if extents[a] >= block and _gathered(accesses, a)):
        order = (axis, *(a for a in inner if a != axis))
        choices.append(_Loops(order, block, extents, none, hints, least))
    return _cheaper(accesses, choices)


def _gathered(accesses: Accesses, axis: str) -> bool:
    """Whether a vector's elements along an axis are beside each other, or can be gathered."""
    return all(a.bytes >= 4 or a.offset.coefficient(axis) in (0, 1) for a in accesses.all)


def _sums_over(accesses: Accesses, lane: str) -> bool:
    """Whether what is reduced over rows can be where `lane` is one of them: sums of what varies
    along it and along columns, of rows that are not turned."""
    body, axes = accesses.comp.body, value_axes(accesses.comp.body)
    over_rows = [body[v] for v in accesses.frame.column_reductions]
    varying = (axes[i.args[0]] for i in over_rows)
    crossed = all(lane in v and not v.isdisjoint(accesses.frame.columns) for v in varying)
    sums = all(i.monoid == "sum" for i in over_rows)
    return crossed and sums and not (over_rows and tiles(accesses, lane))


def _steps(accesses: Accesses, loops: _Loops) -> Iterator[float]:
    comp, axes = accesses.comp, value_axes(accesses.comp.body)
    for value, instr in enumerate(comp.body):
        if isinstance(instr, (Op, Cast)):
            cost = TABLE[instr.name].cost if isinstance(instr, Op) else 1.0
            yield cost * loops.times(axes[value])
        elif isinstance(instr, (Reduce, Scan)):
            used = frozenset().union(*(axes[v] for v in operands(instr)))
            over_rows = value in accesses.frame.column_reductions
            yield _over_rows(loops, used) if over_rows else _reducing(instr, loops, used)
    turned = tiles(accesses, loops.lane)
    for value, access in accesses.loads.items():
        if turned and value in turned.loads:
            yield _TURNED * loops.times(axes[value])
        else:
            yield _moving(access, axes[value], loops, 1.0, _is_chosen(access, axes, loops))
    banded = frozenset() if loops.lane in loops.columns else turned_stores(accesses, loops.lane)
    for number, (store, access) in enumerate(zip(comp.stores, accesses.stores)):
        if number in banded or (turned and number in turned.stores):
            wide = number in banded and access.bytes > 2
            yield (_BANDED if wide else _TURNED) * loops.times(store_axes(comp, store, axes))
        else:
            chosen = _is_chosen(access, axes, loops)
            yield _moving(access, store_axes(comp, store, axes), loops, _STORES_WAIT, chosen)


def _over_rows(loops: _Loops, axes: frozenset[str]) -> float:
    """Along the columns, the sums so far are in memory; abreast, rows of a block are added up."""
    each = loops.times(axes)
    if loops.lane in loops.columns:
        return 3 * each
    return each * (1 + _TAIL * loops.vector / loops.at_once)


def _reducing(instr: Reduce | Scan, loops: _Loops, axes: frozenset[str]) -> float:
    """Abreast, the results so far are in memory; along the columns, a vector of them is merged."""
    each, merge = loops.times(axes), MONOIDS[instr.monoid].cost
    if loops.lane not in loops.columns:
        return (2 + merge) * each
    if isinstance(instr, Scan):
        return each * (loops.vector + merge - 1)  # one after the other
    rows = prod(n for a, n in loops.extents.items() if a not in loops.columns)
    tail = _SHORT_TAIL if loops.extents[loops.lane] <= LONGEST else _TAIL
    return each + tail * MONOIDS[instr.monoid].results * rows


def _is_chosen(access: Access, axes: list[frozenset[str]], loops: _Loops) -> bool:
    """Whether a computed place is another for each element of a vector. The rows of a table that
    are looked up lie in memory as they are along their columns."""
    return any(loops.lane in axes[v] for v, _ in access.refs)


def _moving(
    access: Access, axes: frozenset[str], loops: _Loops, waits: float, chosen: bool
) -> float:
    """Steps of a load or store that varies along `axes`; `waits`: the share of a load's; `chosen`:
    each element of a vector is somewhere else."""
    each = loops.times(axes)
    if chosen:
        return each * loops.vector * _ALONE
    moved = [k for k, a in enumerate(loops.order) if a in access.offset.axes]
    if not moved:
        return each
    first = moved[0]
    stride = _stride(access, loops.order[first], loops)
    if stride * access.bytes >= _LINE:
        each *= 1 + waits * _wait(access, stride * access.bytes // _LINE, first, loops)
    if first > 0 or stride == 1:
        return each
    return each * min(stride * _SHUFFLED, loops.vector * _ALONE)


def _stride(access: Access, axis: str, loops: _Loops) -> int:
    return abs(size.hint(access.offset.coefficient(axis), loops.hints))


def _wait(access: Access, apart: int, number: int, loops: _Loops) -> float:
    """Steps for each of the lines, `apart` lines from each other, of loop `number`: are they there
    when the loop around it comes back to them?"""
    at_once = loops.extents[loops.order[number]] if number else loops.at_once
    outer = loops.order[number + 1] if number + 1 < len(loops.order) else None
    step = _stride(access, outer, loops) * access.bytes if outer else _LINE
    fresh = _FAR_WAIT * min(1.0, step / _LINE)
    if at_once <= _WAYS * (_NEAR_SETS // gcd(_NEAR_SETS, apart)):
        return fresh
    if at_once <= _WAYS * (_FAR_SETS // gcd(_FAR_SETS, apart)):
        return _NEAR_WAIT + fresh
    return _FAR_WAIT
