"""A product whose reader needs several of its columns at each point: rotary embeddings, gates that
are halves of one result.

    extern t = mm(x, w)
    comp y [m, d:64] { y[m, d] = t[m, d] * c[m, d] + (-t[m, d+32] if d < 32 else t[m, d-32]) * s }
 -> comp y [m, j:32, k] { a = sum over k of x * w[j]; b = sum over k of x * w[j+32];
                          y[m, j] = a * c - b * s; y[m, j+32] = b * c' + a * s' }

The axis that offsets run along is split by the offset and its outer part written out, so that
guards fall away. If the reader then names every column exactly once per row, each of its loads
becomes a product of its own over the same rows and depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

from torchweld.ir.affine import Affine, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Cast, Comp, Load, Value, map_axes
from torchweld.ir.simplify import simplify
from torchweld.ir.size import Size
from torchweld.ir.size import product as product_of_sizes
from torchweld.ir.substitute import inline, move_store
from torchweld.plan.inline import Place, apart, copy_instr, copy_store, split_in_two
from torchweld.plan.merge import Rules, merge
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.tidy import tidy
from torchweld.plan.unify import solve

MOST_PARTS = 4


def joined(product: Comp, reader: Comp, rules: Rules) -> Comp | Refusal:
    """`reader` with `product` in it, which it may read at several columns."""
    merged = merge(product, reader, rules)
    if not isinstance(merged, Refusal) or merged.reason != Reason.ROWS or rules.keep:
        return merged
    return join_columns(product, reader)


def join_columns(product: Comp, reader: Comp) -> Comp | Refusal:
    """`reader` with `product` (one store, nothing else reads it) in the place of each of its
    loads."""
    result = product.stores[0].buffer
    reader = _parted(reader, result)
    loads = dict.fromkeys(_loads(reader, result))
    if not loads or any(load.guard is not None for load in loads):
        return Refusal(Reason.ROWS, f"one point reads several columns of {result}")
    product = apart(product, reader)
    images = {load: _images(product, load, reader) for load in loads}
    if None in images.values() or not _is_partition(product, images, reader):
        return Refusal(Reason.ROWS, f"columns of {result} would be computed more than once")
    return _joined(product, images, reader)


def _loads(comp: Comp, buffer: str) -> list[Load]:
    return [i for i in comp.body if isinstance(i, Load) and i.buffer == buffer]


# -- the reader, its axis in parts --


def _parted(reader: Comp, result: str) -> Comp:
    """`reader` with the axis along which reads of `result` differ written out: as it is, if it is
    short and some do not name it, else in parts as long as the offset between them."""
    loads, extents = _loads(reader, result), reader.extents
    short = _ignored(loads, extents)
    if short is not None:
        return written_out(reader, Axis(short, extents[short]))
    found = _offset(loads, extents)
    if found is None:
        return reader
    name, step = found
    halves = split_in_two(reader, name, step)
    if halves is None:
        return reader
    outer = next(a for a in halves.axes if a not in reader.axes)
    return written_out(halves, outer)


def _ignored(loads: list[Load], extents: Mapping[str, Size]) -> str | None:
    """A short axis (that of neighbours which change places) that one read names, and another does
    not."""
    named = [map_axes(load.index) for load in loads]
    some = sorted(set().union(*named) - frozenset.intersection(*named)) if named else []
    return next((n for n in some if extents[n] in range(2, MOST_PARTS + 1)), None)


def _offset(loads: list[Load], extents: Mapping[str, Size]) -> tuple[str, int] | None:
    """(axis, offset) such that two reads differ by that many of its steps, and the axis is a few
    such parts long."""
    for one, other in permutations((load.index for load in loads), 2):
        for a, b in zip(one, other):
            if isinstance(a, Affine) and isinstance(b, Affine) and a.terms == b.terms:
                for name, coefficient in a.terms:
                    step = _steps(a.const - b.const, coefficient)
                    if step and extents[name] in range(2 * step, MOST_PARTS * step + 1, step):
                        return name, step
    return None


def _steps(difference: Size, coefficient: Size) -> int:
    """How many steps of an axis make a difference; 0 if no number does."""
    if not (isinstance(difference, int) and isinstance(coefficient, int)):
        return 0
    return difference // coefficient if difference > 0 and difference % coefficient == 0 else 0


def written_out(comp: Comp, axis: Axis) -> Comp:
    """`comp` without `axis`: what it does at each of its points, one after the other."""
    builder, stores = BodyBuilder(), []
    for point in range(axis.extent):
        image = {axis.name: constant(point)}
        values = inline(builder, comp.body, image)
        stores += [move_store(s, values.__getitem__, image) for s in comp.stores]
    axes = tuple(a for a in comp.axes if a != axis)
    return simplify(replace(comp, axes=axes, body=builder.body, stores=tuple(stores)))


# -- the product in the place of each load --


def _images(product: Comp, load: Load, reader: Comp) -> dict[str, Affine] | None:
    """The product's rows and columns at a load, in the reader's axes."""
    found = solve(product.stores[0].index, load.index, product.extents, reader.extents)
    if not isinstance(found, dict) or not all(isinstance(i, Affine) for i in found.values()):
        return None
    return found


def _is_partition(product: Comp, images: Mapping[Load, Mapping], reader: Comp) -> bool:
    """Every element of the result is read by one load at one point: each load reads another element
    at each point, the loads differ by offsets, and together they count as many points as there are
    elements."""
    first, *others = images.values()
    elements = product_of_sizes(a.extent for a in product.axes if a.name in first)
    points = product_of_sizes(a.extent for a in reader.axes) * len(images)
    varies = frozenset().union(*(i.axes for i in first.values()))
    alike = all(_terms(found) == _terms(first) for found in others)
    return elements == points and alike and varies == {a.name for a in reader.axes}


def _terms(images: Mapping[str, Affine]) -> dict[str, tuple]:
    return {name: image.terms for name, image in images.items()}


def _joined(product: Comp, images: Mapping[Load, Mapping], reader: Comp) -> Comp:
    names = set().union(*(found.keys() for found in images.values()))
    depth = tuple(a for a in product.axes if a.name not in names)
    axes = reader.axes + depth
    extents = {a.name: a.extent for a in axes}
    to, at, same = BodyBuilder(), [], Place({}, extents)
    for instr in reader.body:
        if instr in images:
            at.append(_product_at(to, product, Place(images[instr], extents), instr.exact))
        else:
            at.append(copy_instr(to, instr, at, same))
    stores = tuple(copy_store(to, s, at, same) for s in reader.stores)
    origins = tuple(dict.fromkeys(product.origins + reader.origins))
    return tidy(Comp(reader.name, axes, to.body, stores, origins))


def _product_at(to: BodyBuilder, product: Comp, place: Place, exact: bool) -> Value:
    at: list[Value] = []
    for instr in product.body:
        at.append(copy_instr(to, instr, at, place))
    value = at[product.stores[0].value]
    if exact and isinstance(to[value], Cast):
        return to.emit(replace(to[value], must_round=True))
    return value
