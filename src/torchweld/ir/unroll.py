"""Reductions over a few points written out: what remains is pointwise.

    reduce.sum[k] x[i, k, j], k of 3    ->    ((0 + x[i, 0, j]) + x[i, 1, j]) + x[i, 2, j]
    store y[i, k, j] %1                 ->    store y[i, 0, j] %1;  store y[i, 1, j] %5;  ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from torchweld.ir import size
from torchweld.ir.affine import Affine, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Comp, Op, Reduce, Scan, Value, store_axes, value_axes
from torchweld.ir.substitute import move_store, substitute_axes, with_operands

_MOST_TERMS = 8  # of a reduction that is written out
_MOST_WRITTEN = 256  # instructions of all its points
_OPS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def is_short(comp: Comp, axes: tuple[str, ...]) -> bool:
    """Whether it can be unrolled, into a few instructions."""
    terms = size.product(comp.extent(a) for a in axes)
    few = isinstance(terms, int) and 1 < terms <= _MOST_TERMS
    return few and terms * len(comp.body) <= _MOST_WRITTEN and can_unroll(comp, axes)


def can_unroll(comp: Comp, axes: tuple[str, ...]) -> bool:
    """Whether all reductions of `comp` are over exactly these axes, by an operation, and nothing
    that is stored varies along them, nor is scanned."""
    known, wanted = value_axes(comp.body), set(axes)
    good = all(reduces_over(i, wanted) for i in comp.body if isinstance(i, Reduce))
    good = good and not any(isinstance(i, Scan) and i.axis in wanted for i in comp.body)
    return good and not any(known[s.value] & wanted or _reads(s, wanted) for s in comp.stores)


def reduces_over(instr: Reduce, axes: set[str]) -> bool:
    """Whether it is over exactly these axes, by an operation."""
    return set(instr.axes) == axes and instr.monoid in _OPS


def _reads(store, wanted: set[str]) -> bool:
    return any(isinstance(e, Affine) and e.axes & wanted for e in store.index)


def unrolled(comp: Comp, axes: tuple[str, ...]) -> Comp:
    """`comp`, whose reductions are over exactly these axes or none of them, without them. Their
    extents are numbers. Terms are added in the order of the points, the last axis first. What is
    stored at each of them is so still."""
    points = list(product(*(range(comp.extent(a)) for a in axes)))
    images = [{a: constant(n) for a, n in zip(axes, point)} for point in points]
    work, known = BodyBuilder(), value_axes(comp.body)
    values: list[list[Value]] = []  # at each point; of what is the same at all, one
    for value, instr in enumerate(comp.body):
        if isinstance(instr, Reduce) and set(instr.axes) & set(axes):
            values.append([_chain(work, instr, values[instr.args[0]], len(points))])
            continue
        each = images if known[value] & set(axes) else images[:1]
        values.append([_at(work, instr, values, n, image) for n, image in enumerate(each)])
    rest = tuple(a for a in comp.axes if a.name not in axes)
    stores = []
    for store in comp.stores:
        each = images if store_axes(comp, store, known) & set(axes) else images[:1]
        for n, image in enumerate(each):
            stores.append(move_store(store, lambda v, n=n: _of_point(values[v], n), image))
    return replace(comp, axes=rest, body=work.body, stores=tuple(stores))


def _of_point(values: list[Value], number: int) -> Value:
    return values[number] if len(values) > 1 else values[0]


def _at(work: BodyBuilder, instr, values, number: int, image: Mapping[str, Affine]) -> Value:
    """An instruction at one of the points."""
    moved = substitute_axes(instr, image)
    return work.emit(with_operands(moved, lambda v: _of_point(values[v], number)))


def _chain(work: BodyBuilder, instr: Reduce, terms: list[Value], points: int) -> Value:
    """A sum begins with zero: that of negative zeros is positive."""
    terms = terms * points if len(terms) == 1 else terms
    total = work.const(0, instr.dtype) if instr.monoid == "sum" else None
    for term in terms:
        if total is None:
            total = term
        else:
            total = work.emit(Op(_OPS[instr.monoid], (total, term), instr.dtype))
    return total
