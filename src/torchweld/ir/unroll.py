"""Reductions over a few points written out: what remains is pointwise.

    reduce.sum[k] x[i, k, j], k of 3    ->    ((0 + x[i, 0, j]) + x[i, 1, j]) + x[i, 2, j]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from torchweld.ir import size
from torchweld.ir.affine import Affine, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Comp, Op, Reduce, Scan, Value, value_axes
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
    reduces = [i for i in comp.body if isinstance(i, Reduce)]
    good = all(set(i.axes) == wanted and i.monoid in _OPS for i in reduces)
    good = good and not any(isinstance(i, Scan) and i.axis in wanted for i in comp.body)
    return good and not any(known[s.value] & wanted or _reads(s, wanted) for s in comp.stores)


def _reads(store, wanted: set[str]) -> bool:
    return any(isinstance(e, Affine) and e.axes & wanted for e in store.index)


def unrolled(comp: Comp, axes: tuple[str, ...]) -> Comp:
    """`comp`, which can be unrolled, without `axes`, whose extents are numbers. Terms are added in
    the order of the points, the last axis first."""
    points = list(product(*(range(comp.extent(a)) for a in axes)))
    images = [{a: constant(n) for a, n in zip(axes, point)} for point in points]
    work, known = BodyBuilder(), value_axes(comp.body)
    values: list[list[Value]] = []  # at each point; of what is the same at all, one
    for value, instr in enumerate(comp.body):
        if isinstance(instr, Reduce):
            values.append([_chain(work, instr, values[instr.args[0]], len(points))])
            continue
        each = images if known[value] & set(axes) else images[:1]
        values.append([_at(work, instr, values, n, image) for n, image in enumerate(each)])
    rest = tuple(a for a in comp.axes if a.name not in axes)
    stores = tuple(move_store(s, lambda v: values[v][0], {}) for s in comp.stores)
    return replace(comp, axes=rest, body=work.body, stores=stores)


def _at(work: BodyBuilder, instr, values, number: int, image: Mapping[str, Affine]) -> Value:
    """An instruction at one of the points."""

    def operand(value: Value) -> Value:
        found = values[value]
        return found[number] if len(found) > 1 else found[0]

    return work.emit(with_operands(substitute_axes(instr, image), operand))


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
