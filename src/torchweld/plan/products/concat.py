"""Products of one operand and different numbers of columns in one kernel: queries, keys and values.

    extern q = mm(x, a [k, 64]);  extern v = mm(x, b [k, 16])
 -> comp [m, n:80, k] { s = sum over k of x * (a[n] if n < 64 else b[n-64]);
                        store q[m, n] s if n < 64;  store v[m, n-64] s if n >= 64 }

Where one has its columns in heads (keys that go into a cache), so have all, and heads are side by
side. Where one has several products, one for each part of a head (a rotary embedding,
columns.py), so have all.
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
from torchweld.plan.products.columns import written_out

_COLUMN, _INNER = "n", "n_in"


@dataclass(frozen=True, slots=True)
class _Part:
    """One Comp: its columns begin at `start`; `guard` holds there, `below` before their end."""

    comp: Comp
    start: int
    guard: Value
    below: Value


def concatenated(comps: Sequence[Comp]) -> Comp | None:
    """Comps of products with the same left factor as one with the columns of all; None if one is
    not plain, or rows, depth or heads differ."""
    named = _alike([_named(c) for c in comps])
    if named is None or len({(_left(c), _other_axes(c)) for c in named}) > 1:
        return None
    first, extents = named[0], [c.extent(_COLUMN) for c in named]
    axes = tuple(Axis(_COLUMN, sum(extents)) if a.name == _COLUMN else a for a in first.axes)
    to = BodyBuilder()
    parts = _parts(to, named, extents)
    summed = [_sum(to, parts, k) for k in range(len(_sums(first)))]
    stores: list[Store] = []
    for part in parts:
        stores += _epilogue(to, part, summed)
    origins = tuple(dict.fromkeys(o for c in comps for o in c.origins))
    return Comp(first.name, axes, to.body, tuple(stores), origins)


def is_plain(comp: Comp) -> bool:
    """Whether `comp` is one product of two loads, whose columns are one or two axes of known
    extents."""
    return len(_sums(comp)) == 1 and _named(comp) is not None


def _named(comp: Comp) -> Comp | None:
    """With axes of the same names in all: k0.., n (and n_in), m0.."""
    factors = [_factors(comp, v) for v in _sums(comp)]
    if not factors or any(None in pair for pair in factors):
        return None
    sides = {(left, map_axes(right.index)) for left, right in factors}
    depths = {comp.body[v].axes for v in _sums(comp)}
    if len(sides) > 1 or len(depths) > 1:
        return None
    ((left, right),), (depth,) = sides, depths
    names = dict(zip(depth, (f"k{n}" for n in range(len(depth)))))
    others = [a.name for a in comp.axes if a.name not in names]
    rows = [a for a in others if a in map_axes(left.index)]
    columns = [a for a in others if a not in rows]
    if len(columns) not in (1, 2) or not right.issuperset(columns) or right.intersection(rows):
        return None
    names |= {a: f"m{n}" for n, a in enumerate(rows)} | dict(zip(columns, (_COLUMN, _INNER)))
    known = all(isinstance(comp.extent(a), int) for a in columns)
    return rename_axes(comp, names) if known else None


def _alike(comps: Sequence[Comp | None]) -> list[Comp] | None:
    """All with as many products; all with columns of one axis, or all of two, heads of the same
    width."""
    if None in comps:
        return None
    count = max(len(_sums(c)) for c in comps)
    widths = {c.extent(_INNER) * len(_sums(c)) for c in comps if _has_heads(c)}
    if len(widths) > 1 or (count > 1 and not widths):
        return None
    mixed = any(_has_mixed_parts(c) for c in comps)
    made = [_in_parts(c, min(widths), count, mixed) for c in comps] if widths else list(comps)
    return None if None in made else made


def _in_parts(comp: Comp, width: int, count: int, mixed: bool) -> Comp | None:
    """With heads of that width, and a product for each of `count` parts of a head; `mixed`: one
    column belongs to the first, the next to the second."""
    if not _has_heads(comp):
        if comp.extent(_COLUMN) % width:
            return None
        outer = Axis(_COLUMN, comp.extent(_COLUMN) // width)
        comp = split_axis(comp, _COLUMN, outer, Axis(_INNER, width))
    if len(_sums(comp)) == count:
        return comp
    part, column = Axis("part", count), Axis(_INNER, width // count)
    split = (column, part) if mixed else (part, column)
    comp = written_out(split_axis(comp, _INNER, *split), part)
    return comp if len(_sums(comp)) == count else None


def _has_mixed_parts(comp: Comp) -> bool:
    count = len(_sums(comp))
    right = _factors(comp, _sums(comp)[0])[1]
    steps = [e.coefficient(_INNER) for e in right.index if isinstance(e, Affine)]
    return count > 1 and count in steps


def _has_heads(comp: Comp) -> bool:
    return any(a.name == _INNER for a in comp.axes)


def _other_axes(comp: Comp) -> frozenset[Axis]:
    return frozenset(a for a in comp.axes if a.name != _COLUMN)


def _sums(comp: Comp) -> list[Value]:
    return [v for v, i in enumerate(comp.body) if isinstance(i, Reduce)]


def _factors(comp: Comp, value: Value) -> tuple[Load | None, Load | None]:
    """The loads of the left and of the right factor, which are widened and multiplied."""
    product = comp.body[comp.body[value].args[0]]
    if not isinstance(product, Op) or product.name != "mul":
        return None, None
    left, right = (_widened(comp.body, v) for v in product.args)
    return left, right


def _widened(body: tuple[Instr, ...], value: Value) -> Load | None:
    cast = body[value]
    load = body[cast.arg] if isinstance(cast, Cast) else None
    return load if isinstance(load, Load) and load.guard is None else None


def _left(comp: Comp) -> Load:
    return _factors(comp, _sums(comp)[0])[0]


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


def _sum(to: BodyBuilder, parts: Sequence[_Part], number: int) -> Value:
    """The sum over the depth, of the factors that the column says: of each, product `number`."""
    chosen: Value | None = None
    for part in reversed(parts):
        right = _factors(part.comp, _sums(part.comp)[number])[1]
        load = substitute_axes(right, _images(part))
        value = to.emit(replace(load, guard=part.guard, fill=0.0))
        chosen = value if chosen is None else to.emit(
            Op("where", (part.below, value, chosen), load.dtype)
        )  # fmt: skip
    first, depth = parts[0].comp, parts[0].comp.body[_sums(parts[0].comp)[0]].axes
    left = to.widen(to.emit(_left(first)))
    return to.reduce("sum", (to.op("mul", left, to.widen(chosen)),), depth)


def _epilogue(to: BodyBuilder, part: _Part, summed: Sequence[Value]) -> list[Store]:
    """What a Comp does with its sums, where its columns are."""
    body, images, at = part.comp.body, _images(part), []
    totals, axes = dict(zip(_sums(part.comp), summed)), value_axes(part.comp.body)
    depth = body[next(iter(totals))].axes
    for value, instr in enumerate(body):
        if value in totals or axes[value].intersection(depth):
            at.append(totals.get(value))
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
