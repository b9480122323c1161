"""Windows on a GPU: several neighbours a thread, which share what they read.

    before: y[n, h, w, c] = x[n, h, w-1, c] * t[0, c] + x[n, h, w, c] * t[1, c] + ...      (3 loads)
    after:  y[n, h, 4*w, c] = ...;  y[n, h, 4*w+1, c] = ...;  two more       (6 loads for 4 results)

What one load is to a thread, is also a conversion, and a test of whether it is inside the image:
kernels of windows wait for instructions, not for memory. The neighbours lie along an axis that is
not the innermost, so that threads beside each other still read what is adjacent. It comes after the
plan, which knows one result a point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.interval import affine_bounds
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Graph,
    Index,
    Load,
    Node,
    Op,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
    value_axes,
)
from torchweld.ir.simplify import simplify
from torchweld.ir.size import hint, product
from torchweld.ir.substitute import move_store, substitute_axes, with_operands
from torchweld.ir.unroll import reduces_over
from torchweld.targets.target import Target

_COUNTS = (4, 3, 2)
_LEAST_LOADS = 6  # of a point: windows of fewer elements wait for memory
# Of the loads and stores are left, at most. What stores as much as it loads waits for that: 37
# results of a window of 5 x 5 were half of the stores of a thread, of one point in place of two.
_WORTH = 0.8
_MOST_LOADS = 48  # of several results: of more, registers spill
_THREADS = 256  # for each multiprocessor, at least, each with a vector of results


def neighbours_together(graph: Graph, target: Target) -> Graph:
    """`graph` with such kernels."""
    nodes = tuple(_together(node, graph, target) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def _together(node: Node, graph: Graph, target: Target) -> Node:
    if not isinstance(node, Comp) or not _is_window(node):
        return node
    most = _WORTH * (_loads(node) + len(node.stores))
    found = min(_candidates(node, graph, target, most), key=lambda c: c[0], default=None)
    return found[1] if found and found[0] <= most else node


def _is_window(comp: Comp) -> bool:
    """Whether it reads many elements, all at places that are known, and writes each of its own."""
    return writes_each_point(comp) and _loads(comp) >= _LEAST_LOADS


def writes_each_point(comp: Comp, along: str = "") -> bool:
    """Whether it is pointwise, and `stores_plainly`. `along`: it may be reduced over this one axis,
    which can be written out."""
    reductions = (i for i in comp.body if isinstance(i, (Reduce, Scan)))
    known = all(isinstance(i, Reduce) and reduces_over(i, {along}) for i in reductions)
    return known and stores_plainly(comp)


def stores_plainly(comp: Comp) -> bool:
    """Whether all places are known, nothing is combined, and nothing that it reads overwritten."""
    bad = not {i.buffer for i in comp.body if isinstance(i, Load)}.isdisjoint(comp.writes)
    bad |= any(isinstance(e, Ref) for i in comp.body if isinstance(i, Load) for e in i.index)
    bad |= any(s.combine or s.init is not None for s in comp.stores)
    bad |= any(isinstance(e, Ref) for s in comp.stores for e in s.index)
    return not bad


def _loads(comp: Comp) -> int:
    """Of tiles: what has few axes is read once for many points."""
    axes = value_axes(comp.body)
    most = max(map(len, axes), default=0)
    return sum(isinstance(i, Load) and len(axes[v]) == most for v, i in enumerate(comp.body))


def _candidates(
    comp: Comp, graph: Graph, target: Target, most: float
) -> Iterator[tuple[float, Comp]]:
    """(loads and stores of each point, the Comp), for each axis and number of neighbours that may
    have at most `most` of them."""
    points = hint(product(a.extent for a in comp.axes), graph.hints)
    for along in comp.axes:
        if not isinstance(along.extent, int) or not lies_across(comp, along.name, graph.buffers):
            continue
        for count in _COUNTS:
            threads = points / (count * 8)
            if along.extent < count or threads < _THREADS * target.units:
                continue
            tiles = -(-along.extent // count)
            least = _least_loads(comp, along, count)
            touched = (least + count * len(comp.stores)) * tiles / along.extent
            if least > _MOST_LOADS or touched > most:
                continue
            made = _written_out(comp, along, count, graph.buffers)
            if made is not None and _loads(made) <= _MOST_LOADS:
                yield (_loads(made) + len(made.stores)) * tiles / along.extent, made


def _least_loads(comp: Comp, along: Axis, count: int) -> int:
    """How many loads `count` neighbours have at least: of different places, unless a condition on
    the place decides which of them are done. Tells of parts of a concatenation, which have no
    element in common, without writing them out."""
    if any(isinstance(i, Index) and along.name in i.map.axes for i in comp.body):
        return 0
    axes = value_axes(comp.body)
    widest = max(map(len, axes), default=0)
    steps = [axis(along.name) * count + k for k in range(count)]
    places = {
        (load.buffer, tuple(e.substitute({along.name: step}) for e in load.index))
        for value, load in enumerate(comp.body)
        if isinstance(load, Load) and len(axes[value]) == widest
        for step in steps
    }
    return len(places)


def lies_across(comp: Comp, name: str, buffers: Mapping[str, Buffer]) -> bool:
    """Whether all that is stored varies along an axis, and nothing is contiguous along it."""
    for access in (*(i for i in comp.body if isinstance(i, Load)), *comp.stores):
        strides = buffers[access.buffer].strides
        steps = [e.coefficient(name) * s for e, s in zip(access.index, strides)]
        if any(step in (1, -1) for step in steps):
            return False
        if isinstance(access, Store) and not any(step != 0 for step in steps):
            return False
    return True


def _written_out(comp: Comp, along: Axis, count: int, buffers: Mapping[str, Buffer]) -> Comp | None:
    """`comp` with `count` results of neighbours at each point. None where it is not known whether
    those of the last point are inside of what they read."""
    tiles = -(-along.extent // count)
    axes = tuple(Axis(a.name, tiles) if a is along else a for a in comp.axes)
    work, stores = BodyBuilder(), []
    extents = {a.name: a.extent for a in axes}
    for k in range(count):
        images = {along.name: axis(along.name) * count + k}
        values: list[Value] = []
        for instr in comp.body:
            made = with_operands(substitute_axes(instr, images), values.__getitem__)
            if isinstance(made, Load) and along.extent % count:
                made = _inside(work, made, buffers[made.buffer], extents)
            if made is None:
                return None
            values.append(work.emit(made))
        moved = [move_store(s, values.__getitem__, images) for s in comp.stores]
        if count * (tiles - 1) + k >= along.extent:
            last = _before(work, images[along.name], along.extent)
            moved = [replace(s, guard=_both(work, s.guard, last)) for s in moved]
        stores += moved
    return simplify(replace(comp, axes=axes, body=work.body, stores=tuple(stores)))


def _inside(
    work: BodyBuilder, load: Load, buffer: Buffer, extents: Mapping[str, int]
) -> Load | None:
    """`load` where its index is before the ends of a buffer; None if that is not known."""
    for place, size in zip(load.index, buffer.shape):
        found = affine_bounds(place, extents)
        if found is None or not isinstance(size, int):
            if place.axes:
                return None
        elif found[1] >= size:
            load = replace(load, guard=_both(work, load.guard, _before(work, place, size)))
    return load


def _before(work: BodyBuilder, place: Affine, size: int) -> Value:
    return work.op("lt", work.index(place), work.index(constant(size)))


def _both(work: BodyBuilder, guard: Value | None, other: Value) -> Value:
    """Either once: the guards of neighbours are then the same values."""
    if guard is None:
        return other
    return guard if other in _parts(work, guard) else work.op("bit_and", guard, other)


def _parts(work: BodyBuilder, guard: Value) -> Iterator[Value]:
    yield guard
    instr = work[guard]
    if isinstance(instr, Op) and instr.name == "bit_and":
        for arg in instr.args:
            yield from _parts(work, arg)
