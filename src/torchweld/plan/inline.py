"""Instructions copied from one body into another, with axes replaced by images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.affine import Affine, axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Comp,
    Index,
    IndexMap,
    Instr,
    Load,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
)
from torchweld.ir.size import Size, divide
from torchweld.ir.substitute import rename_axes, split_axis, with_operands
from torchweld.plan.unify import Image, bounds

Shapes = Mapping[str, tuple[Size, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a body is copied to: images of its axes over `axes` (the target's, with extents), and a
    condition (a value of the target) outside which the images may leave their range."""

    images: Mapping[str, Image]
    axes: Mapping[str, Size]
    guard: Value | None = None
    shapes: Shapes | None = None


def copy_instr(to: BodyBuilder, instr: Instr, at: Sequence[Value | None], place: Place) -> Value:
    """`instr` emitted into `to`; `at` gives the new number of each earlier value."""
    if isinstance(instr, Load):
        return _copy_load(to, instr, at, place)
    if isinstance(instr, Index):
        image = map_image(to, instr.map, place.images)
        return image.value if isinstance(image, Ref) else to.index(image)
    moved = with_operands(instr, at.__getitem__)
    if isinstance(moved, Reduce):
        moved = replace(moved, axes=image_axes(moved.axes, place))
    elif isinstance(moved, Scan):
        moved = replace(moved, axis=image_axes((moved.axis,), place)[0])
    return to.emit(moved)


def copy_store(to: BodyBuilder, store: Store, at: Sequence[Value | None], place: Place) -> Store:
    guard = None if store.guard is None else at[store.guard]
    index = index_image(to, store.index, at, place.images)
    return replace(store, index=index, value=at[store.value], guard=guard)


def image_axes(names: tuple[str, ...], place: Place) -> tuple[str, ...]:
    """The target's axes that `names` become, in the target's order."""
    found: set[str] = set()
    for name in names:
        image = place.images.get(name, axis(name))
        found |= image.axes
    return tuple(a for a in place.axes if a in found)


def index_image(to: BodyBuilder, index: IndexMap, at, images: Mapping[str, Image]) -> IndexMap:
    return tuple(
        Ref(at[entry.value]) if isinstance(entry, Ref) else map_image(to, entry, images)
        for entry in index
    )


def map_image(to: BodyBuilder, index: Affine, images: Mapping[str, Image]) -> Image:
    """`index` with images for axes; an indirect image makes it a computed value."""
    indirect = [(n, c) for n, c in index.terms if isinstance(images.get(n), Ref)]
    if not indirect:
        return index.substitute(images)
    rest = Affine(tuple(t for t in index.terms if t not in indirect), index.const)
    rest = rest.substitute(images)
    total = None if rest == Affine() else to.index(rest)
    for name, coefficient in indirect:
        part = to.cast(images[name].value, dtypes.i64)
        if coefficient != 1:
            part = to.op("mul", part, to.index(Affine((), coefficient)))
        total = part if total is None else to.op("add", total, part)
    return Ref(total)


def split_in_two(comp: Comp, name: str, inner: Size) -> Comp | None:
    """`name` replaced by two axes, the faster with extent `inner`. None if a scan runs along it."""
    if any(isinstance(i, Scan) and i.axis == name for i in comp.body):
        return None
    taken = {a.name for a in comp.axes}
    outer = Axis(fresh(f"{name}o", taken), divide(comp.extent(name), inner))
    return split_axis(comp, name, outer, Axis(fresh(f"{name}i", taken), inner))


def apart(comp: Comp, other: Comp) -> Comp:
    """`comp` with axis names that `other` does not use."""
    taken = {a.name for a in other.axes}
    clashes = [a.name for a in comp.axes if a.name in taken]
    taken |= {a.name for a in comp.axes}
    return rename_axes(comp, {n: fresh(n, taken) for n in clashes}) if clashes else comp


def fresh(name: str, taken: set[str]) -> str:
    """`name`, or with the first number that makes it new; added to `taken`."""
    candidate, k = name, 0
    while candidate in taken:
        candidate, k = f"{name}_{k}", k + 1
    taken.add(candidate)
    return candidate


def _copy_load(to: BodyBuilder, load: Load, at, place: Place) -> Value:
    index = index_image(to, load.index, at, place.images)
    guard = None if load.guard is None else at[load.guard]
    if place.guard is not None and not _in_bounds(load.buffer, index, place):
        guard = place.guard if guard is None else to.op("bit_and", guard, place.guard)
    return to.emit(replace(load, index=index, guard=guard))


def _in_bounds(buffer: str, index: IndexMap, place: Place) -> bool:
    """Whether the read stays inside the buffer at all points, guard or not."""
    shape = (place.shapes or {}).get(buffer)
    if shape is None:
        return False
    return all(
        isinstance(i, Affine) and _inside(i, size, place.axes) for i, size in zip(index, shape)
    )


def _inside(index: Affine, size: Size, extents: Mapping[str, Size]) -> bool:
    low, high = bounds(index, extents)
    if low is None or not isinstance(size, int):
        return index.const == 0 and index.as_axis is not None and extents[index.as_axis] == size
    return low >= 0 and high < size
