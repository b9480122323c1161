"""Products of one operand and different numbers of columns in one kernel: queries, keys and values.

    extern q = mm(x, a [k, 64]);  extern v = mm(x, b [k, 16])
 -> comp [m, n:80, k] { s = sum over k of x * (a[n] if n < 64 else b[n-64]);
                        store q[m, n] s if n < 64;  store v[m, n-64] s if n >= 64 }

Where one has its columns in heads (keys that go into a cache), so have all, and heads are side by
side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Cast,
    Comp,
    Instr,
    Load,
    Op,
    Reduce,
    Store,
    Value,
    map_axes,
    value_axes,
)
from torchweld.ir.substitute import (
    move_store,
    rename_axes,
    split_axis,
    substitute_axes,
    with_operands,
)

_COLUMN, _INNER = "n", "n_in"


@dataclass(frozen=True, slots=True)
class _Part:
    """One product: its columns begin at `start`; `guard` holds there, `below` before their end."""

    comp: Comp
    start: int
    guard: Value
    below: Value


def concatenated(comps: Sequence[Comp]) -> Comp | None:
    """Comps of one product each, with the same left factor, as one with the columns of all; None if
    one is not plain, or rows, depth or heads differ."""
    named = _in_heads([_named(c) for c in comps])
    if named is None or len({(_left(c), _other_axes(c)) for c in named}) > 1:
        return None
    first, extents = named[0], [c.extent(_COLUMN) for c in named]
    axes = tuple(Axis(_COLUMN, sum(extents)) if a.name == _COLUMN else a for a in first.axes)
    to = BodyBuilder()
    parts = _parts(to, named, extents)
    summed = _sum(to, parts)
    stores: list[Store] = []
    for part in parts:
        stores += _epilogue(to, part, summed)
    origins = tuple(dict.fromkeys(o for c in comps for o in c.origins))
    return Comp(first.name, axes, to.body, tuple(stores), origins)


def is_plain(comp: Comp) -> bool:
    """Whether `comp` is one product of two loads, whose columns are one or two axes of known
    extents."""
    return _named(comp) is not None


def _named(comp: Comp) -> Comp | None:
    """With axes of the same names in all: k0.., n (and n_in), m0.."""
    if sum(isinstance(i, Reduce) for i in comp.body) != 1 or None in _factors(comp):
        return None
    left, right = (map_axes(i.index) for i in _factors(comp))
    depth = _sum_of(comp).axes
    names = dict(zip(depth, (f"k{n}" for n in range(len(depth)))))
    rows = [a.name for a in comp.axes if a.name in left and a.name not in names]
    columns = [a.name for a in comp.axes if a.name not in left]
    if len(columns) not in (1, 2) or not right.issuperset(columns) or right.intersection(rows):
        return None
    names |= {a: f"m{n}" for n, a in enumerate(rows)} | dict(zip(columns, (_COLUMN, _INNER)))
    known = all(isinstance(comp.extent(a), int) for a in columns)
    return rename_axes(comp, names) if known else None


def _in_heads(comps: Sequence[Comp | None]) -> list[Comp] | None:
    """All with columns of one axis; or all of two, heads of the same width."""
    if None in comps:
        return None
    widths = {c.extent(_INNER) for c in comps if _has_heads(c)}
    if not widths:
        return list(comps)
    split = [_split(c, min(widths)) for c in comps]
    return None if None in split or len(widths) > 1 else split


def _has_heads(comp: Comp) -> bool:
    return any(a.name == _INNER for a in comp.axes)


def _split(comp: Comp, width: int) -> Comp | None:
    if _has_heads(comp):
        return comp
    if comp.extent(_COLUMN) % width:
        return None
    outer = Axis(_COLUMN, comp.extent(_COLUMN) // width)
    return split_axis(comp, _COLUMN, outer, Axis(_INNER, width))


def _other_axes(comp: Comp) -> frozenset[Axis]:
    return frozenset(a for a in comp.axes if a.name != _COLUMN)


def _sum_of(comp: Comp) -> Reduce:
    return next(i for i in comp.body if isinstance(i, Reduce))


def _factors(comp: Comp) -> tuple[Load | None, Load | None]:
    """The loads of the left and of the right factor, which are widened and multiplied."""
    product = comp.body[_sum_of(comp).args[0]]
    if not isinstance(product, Op) or product.name != "mul":
        return None, None
    left, right = (_widened(comp.body, v) for v in product.args)
    return left, right


def _widened(body: tuple[Instr, ...], value: Value) -> Load | None:
    cast = body[value]
    load = body[cast.arg] if isinstance(cast, Cast) else None
    return load if isinstance(load, Load) and load.guard is None else None


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
    """What a product does with its sum, where its columns are."""
    body, images, at = part.comp.body, _images(part), []
    total, axes = _sum_of(part.comp), value_axes(part.comp.body)
    for value, instr in enumerate(body):
        if instr is total or axes[value].intersection(total.axes):
            at.append(summed if instr is total else None)
            continue
        moved = with_operands(substitute_axes(instr, images), at.__getitem__)
        if isinstance(moved, Load) and _COLUMN in map_axes(moved.index):
            moved = replace(moved, guard=_both(to, part, moved.guard))
        at.append(to.emit(moved))
    stores = (move_store(s, at.__getitem__, images) for s in part.comp.stores)
    return [replace(s, guard=_both(to, part, s.guard)) for s in stores]


def _both(to: BodyBuilder, part: _Part, guard: Value | None) -> Value:
    """In the part's columns, and where `guard` holds."""
    return part.guard if guard is None else to.op("bit_and", part.guard, guard)
