"""Sums by index on a GPU that come out alike each time: the indices are sorted once, whatever is
added up by them, and points of one place are added in their order (templates/runs/).

Where eager's operation sorts, so that a program in eager repeats, so does the compiled one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest, Spec, aligned, stored
from torchweld.capture.lowering.ranges import all_of, in_range, is_inside
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.errors import NotLowered
from torchweld.ir import views
from torchweld.ir.interval import type_bounds
from torchweld.ir.nodes import Extern
from torchweld.ir.size import Size, product
from torchweld.ir.views import Tensor, contiguous_strides, merged

# Types of keys: passes over them are as many as they have bytes. Each holds places from 0 on, less
# its offset (ATen has no sort of uint16).
_KEYS = ((dtypes.u8, 0), (dtypes.i16, 0), (dtypes.i16, 1 << 15), (dtypes.i32, 0))


@dataclass(frozen=True, slots=True)
class Places:
    """What several indices of broadcast `shape` name together, in dimensions of `sizes` that follow
    each other. `wrap`: negative indices count from the end; else `ignored` is nobody's."""

    indices: tuple[Tensor, ...]
    sizes: tuple[Size, ...]
    shape: tuple[Size, ...]
    wrap: bool = False
    ignored: int = -1

    @property
    def rows(self) -> Size:
        return product(self.sizes)

    @property
    def points(self) -> Size:
        return product(self.shape)


def sums_in_order(call: Call, values: Tensor, places: Places, d: int) -> Tensor:
    """result[.., place[i], ..] += values[.., i, ..], from zeros, for every i of the indices' shape,
    which stands in `values` from dimension d on, as the places do in the result. Raises NotLowered
    for sizes that are known at the call only, and for a single place or index."""
    spec, rank = call.out, len(places.shape)
    behind = spec.shape[d + len(places.sizes) :]
    shape, sums = ((*spec.shape[:d], n, *behind) for n in (places.points, places.rows))
    if not spec.dtype.is_float or not all(isinstance(n, int) for n in (*shape, *spec.shape)):
        raise NotLowered("sums in order of integers, or of sizes that are known at the call")
    if places.points == 1 or places.rows == 1:
        raise NotLowered("sums by one index, or to one place")
    _, offset = key_type(places.rows)
    keys, order = _sorted(call, places)
    given, loops = _by_loops(call, values, d, rank)
    before, after = range(d), range(d + 1, len(shape))
    read = (*before, *[None] * len(loops), *after)
    nest = call.nest(shape, extra=[(keys, (d,)), (order, (d,)), (given, read)])
    key, point = nest.read(keys, (d,)).to(dtypes.i64), nest.read(order, (d,))
    key = key + offset if offset else key
    value = nest.read(given, [*before, *_digits(point, loops), *after])
    buffer = call.graph.buffer(call.name, sums, spec.dtype, contiguous_strides(sums), spec.device)
    to = in_range(key, places.rows, wrap=False)
    place = [to if k == d else nest.at(k) for k in range(len(shape))]
    nest.put(buffer, [*place], value.to(spec.dtype), combine="add_runs", init=0.0,
             guard=(key < places.rows).value)  # fmt: skip
    nest.close()
    return views.reshape(views.whole(buffer), spec.shape)


def _by_loops(call: Call, values: Tensor, d: int, rank: int) -> tuple[Tensor, tuple[int, ...]]:
    """`values` with a dimension for each loop in the place of `rank` dimensions from d on, and what
    the loops count. They are read where they lie if that takes no more memory or has whole lines:
    gradients of sums of rows are one element for all that were added; else they are copied."""
    loops = merged([a for dim in values.dims[d : d + rank] for a in dim])
    repeated = any(not a.steps for a in loops)
    if len(loops) > 1 and not (repeated or _has_lines(call, values, d + rank)):
        shape = (*values.shape[:d], product(values.shape[d : d + rank]), *values.shape[d + rank :])
        values, rank = stored(call.graph, call.reshaped(values, shape)), 1
        loops = values.dims[d]
    apart = [(a,) for a in loops]
    given = replace(values, dims=(*values.dims[:d], *apart, *values.dims[d + rank :]))
    return given, tuple(a.extent for a in loops)


def _has_lines(call: Call, values: Tensor, first: int) -> bool:
    """Whether the dimensions from `first` on, if any, are contiguous in the last."""
    view = call.graph.view_of(values)
    if view is None:
        return False
    strides = [s for n, s in zip(view.shape[first:], view.strides[first:]) if n != 1]
    return not strides or strides[-1] == 1


def _digits(point: Expr, loops: Sequence[int]) -> list[Expr]:
    """The index of each loop, the outermost first, at a point that has a number."""
    if len(loops) == 1:
        return [point]
    if product(loops) < 1 << 31:
        point = point.to(dtypes.i32).to(dtypes.i64)  # divided in 32 bits
    found, point = [], point.maximum(0)
    for count in loops[:0:-1]:
        found.append(point.remainder(count))
        point = point.floor_div(count)
    return [point, *reversed(found)]


def _sorted(call: Call, places: Places) -> list[Tensor]:
    """[places in ascending order, less their offset, for each the number of the index that it is],
    of all that is indexed; `rows` for what is nobody's. Once for the same."""
    graph = call.graph
    said = replace(places, indices=())
    named = [(*places.indices, (name, said)) for name in ("sorted", "order")]
    if named[0] not in graph.copies:
        keys = _keys(call, places)
        made = [graph.buffer(name, keys.shape, kind, (1,), keys.device)
                for name, kind in (("sorted", keys.dtype), ("order", dtypes.i64))]  # fmt: skip
        target, names = "aten.sort.stable", tuple(b.name for b in made)
        graph.emit(Extern(graph.node_name("sort"), target, (graph.view_of(keys),),
                          (("stable", True),), names, (), (graph.origin,)))  # fmt: skip
        graph.copies |= zip(named, map(views.whole, made))
    return [graph.copies[name] for name in named]


def key_type(rows: int) -> tuple[DType, int]:
    """(type, offset) of keys from 0 to `rows`: a place is the key plus the offset."""
    for dtype, offset in _KEYS:
        if rows <= type_bounds(dtype)[1] + offset:
            return dtype, offset
    raise NotLowered("sums by an index of more than 31 bits")


def _keys(call: Call, places: Places) -> Tensor:
    shape, rows, ignored = places.shape, places.rows, places.ignored
    nest = Nest(call.graph, "keys", shape, [aligned(t, len(shape)) for t in places.indices])
    inside, key = [], None
    for index, size in zip(places.indices, places.sizes):
        given = nest.read(index).to(dtypes.i64)
        inside.append(is_inside(given, -size if places.wrap else 0, size))
        inside += [given.ne(ignored)] if ignored >= 0 else []
        at = in_range(given, size, places.wrap)
        key = at if key is None else key * size + at
    key = where(all_of(inside), key, rows)
    kind, offset = key_type(rows)
    key = key - offset if offset else key
    spec = Spec(shape, contiguous_strides(shape), kind, call.out.device)
    made = nest.store(key.to(kind), spec)
    nest.close()
    return call.reshaped(made, (places.points,))
