"""Pure transformations of Comps: renaming, splitting and substituting axes, appending one body to
another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatch

from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Cast,
    Comp,
    Index,
    IndexMap,
    Instr,
    Load,
    Op,
    Pick,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
)

Images = Mapping[str, Affine]


def inline(
    builder: BodyBuilder,
    body: tuple[Instr, ...],
    images: Images,
    replacements: Mapping[Value, Value] | None = None,
) -> list[Value]:
    """Appends `body` to `builder` with each axis replaced by its image; returns the new number of
    each value.

    `replacements` maps values of `body` to values of `builder` that stand for them (a load of what
    the kernel computed).

        body %0 = load x[i]; %1 = exp %0      images i -> 2*k+1
        ->   %7 = load x[2*k+1]; %8 = exp %7  returns [7, 8]
    """
    values: list[Value] = []
    for position, instr in enumerate(body):
        if replacements and position in replacements:
            values.append(replacements[position])
        else:
            moved = with_operands(substitute_axes(instr, images), values.__getitem__)
            values.append(builder.emit(moved))
    return values


def substitute_comp(comp: Comp, axes: tuple[Axis, ...], images: Images) -> Comp:
    """`comp` over new `axes`, each old axis replaced by its image in them."""
    builder = BodyBuilder()
    values = inline(builder, comp.body, images)
    stores = tuple(move_store(s, values.__getitem__, images) for s in comp.stores)
    return replace(comp, axes=axes, body=builder.body, stores=stores)


def rename_axes(comp: Comp, names: Mapping[str, str]) -> Comp:
    """Axes by other names: {"i": "row"}. No two may get one name."""
    axes = tuple(Axis(names.get(a.name, a.name), a.extent) for a in comp.axes)
    return substitute_comp(comp, axes, {old: affine.axis(new) for old, new in names.items()})


def rename_buffers(comp: Comp, names: Mapping[str, str]) -> Comp:
    """Buffers by other names, where read and where written."""

    def renamed(store: Store) -> Store:
        init = names.get(store.init, store.init) if isinstance(store.init, str) else store.init
        return replace(store, buffer=names.get(store.buffer, store.buffer), init=init)

    body = tuple(
        replace(i, buffer=names[i.buffer]) if isinstance(i, Load) and i.buffer in names else i
        for i in comp.body
    )
    return replace(comp, body=body, stores=tuple(map(renamed, comp.stores)))


def split_axis(comp: Comp, name: str, outer: Axis, inner: Axis) -> Comp:
    """Axis i becomes i = outer * inner.extent + inner; a reduction over i runs over both.

    Raises ValueError where i is scanned, or where the two extents do not multiply to its own.
    """
    if outer.extent * inner.extent != comp.extent(name):
        raise ValueError(f"{outer.extent} * {inner.extent} is not the extent of {name}")
    axes = tuple(new for a in comp.axes for new in ((outer, inner) if a.name == name else (a,)))
    image = affine.axis(outer.name) * inner.extent + affine.axis(inner.name)
    return substitute_comp(comp, axes, {name: image})


def drop_unit_axes(comp: Comp) -> Comp:
    """Without the axes of extent one. Reductions and scans over them alone become their argument's
    components."""
    units = {a.name for a in comp.axes if a.extent == 1}
    if not units:
        return comp
    builder, values = BodyBuilder(), []
    images = dict.fromkeys(units, affine.constant(0))
    for instr in comp.body:
        values.append(_without_units(builder, comp, instr, values, units, images))
    stores = tuple(move_store(s, values.__getitem__, images) for s in comp.stores)
    axes = tuple(a for a in comp.axes if a.name not in units)
    return replace(comp, axes=axes, body=builder.body, stores=stores)


def move_store(store: Store, value: Callable[[Value], Value], images: Images) -> Store:
    """A store with its values renumbered and its axes replaced."""
    index = tuple(_move_entry(e, value, images) for e in store.index)
    guard = None if store.guard is None else value(store.guard)
    return Store(store.buffer, index, value(store.value), store.combine, store.init, guard)


@singledispatch
def with_operands(instr: Instr, value: Callable[[Value], Value]) -> Instr:
    """The same instruction on renumbered values."""
    return instr


@with_operands.register
def _(instr: Load, value) -> Load:
    if instr.guard is None and not any(isinstance(e, Ref) for e in instr.index):
        return instr
    index = tuple(Ref(value(e.value)) if isinstance(e, Ref) else e for e in instr.index)
    guard = None if instr.guard is None else value(instr.guard)
    return Load(instr.buffer, index, instr.dtype, guard, instr.fill, instr.exact)


@with_operands.register
def _(instr: Op, value) -> Op:
    return Op(instr.name, tuple(map(value, instr.args)), instr.dtype)  # the most frequent by far


@with_operands.register
def _(instr: Reduce, value) -> Reduce:
    return Reduce(instr.monoid, tuple(map(value, instr.args)), instr.axes, instr.dtype)


@with_operands.register
def _(instr: Cast, value) -> Cast:
    return Cast(value(instr.arg), instr.dtype, instr.must_round)


@with_operands.register(Scan)
@with_operands.register(Pick)
def _(instr, value):
    return replace(instr, arg=value(instr.arg))


@singledispatch
def substitute_axes(instr: Instr, images: Images) -> Instr:
    """The same instruction with each axis replaced by its image.

    A reduced axis becomes the axes of its image: right where the image runs once over each point,
    as a rename or a split does. A scanned axis must be renamed (ValueError).
    """
    return instr


@substitute_axes.register
def _(instr: Index, images: Images) -> Index:
    return Index(instr.map.substitute(images), instr.dtype)


@substitute_axes.register
def _(instr: Load, images: Images) -> Load:
    index = substitute_index(instr.index, images)
    return Load(instr.buffer, index, instr.dtype, instr.guard, instr.fill, instr.exact)


@substitute_axes.register
def _(instr: Reduce, images: Images) -> Reduce:
    axes = tuple(new for old in instr.axes for new in _image_axes(old, images))
    return replace(instr, axes=axes)


@substitute_axes.register
def _(instr: Scan, images: Images) -> Scan:
    axis = images[instr.axis].as_axis if instr.axis in images else instr.axis
    if axis is None:
        raise ValueError(f"axis {instr.axis} is scanned: it can only be renamed")
    return replace(instr, axis=axis)


def substitute_index(index: IndexMap, images: Images) -> IndexMap:
    return tuple(e.substitute(images) if isinstance(e, Affine) else e for e in index)


def _move_entry(entry: Affine | Ref, value, images: Images) -> Affine | Ref:
    return Ref(value(entry.value)) if isinstance(entry, Ref) else entry.substitute(images)


def _image_axes(name: str, images: Images) -> tuple[str, ...]:
    return tuple(n for n, _ in images[name].terms) if name in images else (name,)


def _without_units(builder: BodyBuilder, comp: Comp, instr: Instr, values, units, images) -> Value:
    if isinstance(instr, Scan) and instr.axis in units:
        return values[instr.arg]
    if isinstance(instr, Pick) and _only_units(comp.body[instr.arg], units):
        return _component(builder, comp.body[instr.arg], instr.item, values)
    if _only_units(instr, units):
        return values[instr.args[0]]
    return builder.emit(with_operands(substitute_axes(instr, images), values.__getitem__))


def _only_units(instr: Instr, units: set[str]) -> bool:
    return isinstance(instr, Reduce) and units.issuperset(instr.axes)


def _component(builder: BodyBuilder, reduce: Reduce, item: int, values) -> Value:
    """Result `item` of a tuple reduction of one element: NaN and infinities as the reduction has
    them."""
    x = values[reduce.args[0]]
    if item < len(reduce.args):
        return values[reduce.args[item]]
    if reduce.monoid == "welford":
        return builder.op("sub", x, x)
    lowest = builder.op("eq", x, builder.const(-math.inf, reduce.dtype))
    shift = builder.op("where", lowest, builder.const(0.0, reduce.dtype), x)
    return builder.op("exp", builder.op("sub", x, shift))
