"""Library products of one operand and different numbers of columns in one kernel: queries, keys and
values of few rows.

    extern q = mm(x, a [k, 64]);  extern v = mm(x, b [k, 16])
 -> comp [m, n:80, k] { s = sum over k of x * (a[n] if n < 64 else b[n-64]);
                        store q[m, n] s if n < 64;  store v[m, n-64] s if n >= 64 }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Comp, Load, Op, Reduce, Store, Value, map_axes
from torchweld.ir.substitute import move_store, substitute_axes, with_operands

_COLUMN = "n"  # of a Comp that products_comp wrote


@dataclass(frozen=True, slots=True)
class _Part:
    """One product: its columns begin at `start`; `guard` holds there, `below` before their end."""

    comp: Comp
    start: int
    guard: Value
    below: Value


def concatenated(comps: Sequence[Comp]) -> Comp | None:
    """Products as `product_comp` writes them, with the same left factor, as one with the columns of
    all; None if rows or depth differ, or a number of columns is not known."""
    extents = [_columns(c) for c in comps]
    if None in extents or len({(_left(c), _other_axes(c)) for c in comps}) > 1:
        return None
    first, total = comps[0], sum(extents)
    axes = tuple(Axis(_COLUMN, total) if a.name == _COLUMN else a for a in first.axes)
    to = BodyBuilder()
    parts = _parts(to, comps, extents)
    summed = _sum(to, parts)
    stores: list[Store] = []
    for part in parts:
        stores += _epilogue(to, part, summed)
    origins = tuple(dict.fromkeys(o for c in comps for o in c.origins))
    return Comp(first.name, axes, to.body, tuple(stores), origins)


def _columns(comp: Comp) -> int | None:
    found = [a.extent for a in comp.axes if a.name == _COLUMN]
    return found[0] if found and isinstance(found[0], int) else None


def _other_axes(comp: Comp) -> tuple[Axis, ...]:
    return tuple(a for a in comp.axes if a.name != _COLUMN)


def _sum_of(comp: Comp) -> Reduce:
    return next(i for i in comp.body if isinstance(i, Reduce))


def _factors(comp: Comp) -> tuple[Load, Load]:
    """The loads of the left and of the right factor."""
    product = comp.body[_sum_of(comp).args[0]]
    left, right = (comp.body[comp.body[v].arg] for v in product.args)
    return left, right


def _left(comp: Comp) -> Load:
    return _factors(comp)[0]


def _parts(to: BodyBuilder, comps: Sequence[Comp], extents: Sequence[int]) -> list[_Part]:
    position, parts, start = to.index(axis(_COLUMN)), [], 0
    for comp, extent in zip(comps, extents):
        below = to.op("lt", position, to.const(start + extent, dtypes.i64))
        guard = below
        if start:
            guard = to.op("ge", position, to.const(start, dtypes.i64))
            if comp is not comps[-1]:
                guard = to.op("bit_and", below, guard)
        parts.append(_Part(comp, start, guard, below))
        start += extent
    return parts


def _images(part: _Part) -> dict[str, Affine]:
    return {_COLUMN: axis(_COLUMN) + constant(-part.start)} if part.start else {}


def _sum(to: BodyBuilder, parts: Sequence[_Part]) -> Value:
    """The sum over the depth, of the factors that the column says."""
    chosen: Value | None = None
    for part in reversed(parts):
        load = substitute_axes(_factors(part.comp)[1], _images(part))
        value = to.emit(replace(load, guard=part.guard, fill=0.0))
        chosen = value if chosen is None else to.emit(
            Op("where", (part.below, value, chosen), load.dtype)
        )  # fmt: skip
    left = to.widen(to.emit(_left(parts[0].comp)))
    return to.reduce("sum", (to.op("mul", left, to.widen(chosen)),), _sum_of(parts[0].comp).axes)


def _epilogue(to: BodyBuilder, part: _Part, summed: Value) -> list[Store]:
    """What a product does after its sum, where its columns are."""
    body, images, at = part.comp.body, _images(part), []
    end = body.index(_sum_of(part.comp))
    for position, instr in enumerate(body):
        if position <= end:
            at.append(summed if position == end else None)
            continue
        moved = with_operands(substitute_axes(instr, images), at.__getitem__)
        if isinstance(moved, Load) and _COLUMN in map_axes(moved.index):
            moved = replace(moved, guard=part.guard, fill=0.0)
        at.append(to.emit(moved))
    stores = (move_store(s, at.__getitem__, images) for s in part.comp.stores)
    return [replace(s, guard=part.guard) for s in stores]
