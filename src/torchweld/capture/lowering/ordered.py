"""Sums by index on a GPU that come out alike each time: the indices are sorted once, whatever is
added up by them, and points of one place are added in their order (templates/runs/).

Where eager's operation sorts, so that a program in eager repeats, so does the compiled one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from torchweld.ir.size import product
from torchweld.ir.views import Tensor, contiguous_strides, merged

# Types of keys: passes over them are as many as they have bytes. Each holds places from 0 on, less
# its offset (ATen has no sort of uint16).
_KEYS = ((dtypes.u8, 0), (dtypes.i16, 0), (dtypes.i16, 1 << 15), (dtypes.i32, 0))


def sums_in_order(
    call: Call, values: Tensor, index: Tensor, d: int, wrap: bool = False, ignored: int = -1
) -> Tensor:
    """result[.., index[i], ..] += values[.., i, ..], from zeros, for every i of the index's shape
    in the place of dimension d. `wrap`: negative indices count from the end; else `ignored` is
    nobody's. Raises NotLowered for sizes that are known at the call only, and for a single place or
    index."""
    spec = call.out
    shape = (*spec.shape[:d], product(index.shape), *spec.shape[d + 1 :])
    if not spec.dtype.is_float or not all(isinstance(n, int) for n in (*shape, *spec.shape)):
        raise NotLowered("sums in order of integers, or of sizes that are known at the call")
    if shape[d] == 1 or spec.shape[d] == 1:
        raise NotLowered("sums by one index, or to one place")
    _, offset = key_type(spec.shape[d])
    keys, order = _sorted(call, index, spec.shape[d], wrap, ignored)
    given, loops = _by_loops(call, values, d, index.rank)
    before, behind = range(d), range(d + 1, len(shape))
    places = (*before, *[None] * len(loops), *behind)
    nest = call.nest(shape, extra=[(keys, (d,)), (order, (d,)), (given, places)])
    key, point = nest.read(keys, (d,)).to(dtypes.i64), nest.read(order, (d,))
    key = key + offset if offset else key
    value = nest.read(given, [*before, *_digits(point, loops), *behind])
    buffer = call.graph.buffer(call.name, spec.shape, spec.dtype,
                               contiguous_strides(spec.shape), spec.device)  # fmt: skip
    to = in_range(key, spec.shape[d], wrap=False)
    place = [to if k == d else nest.at(k) for k in range(len(shape))]
    nest.put(buffer, [*place], value.to(spec.dtype), combine="add_runs", init=0.0,
             guard=(key < spec.shape[d]).value)  # fmt: skip
    nest.close()
    return views.whole(buffer)


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


def _sorted(call: Call, index: Tensor, rows: int, wrap: bool, ignored: int) -> list[Tensor]:
    """[places in ascending order, less their offset, for each the number of the index that it is],
    of all elements of `index`; place `rows` for what is nobody's. Once for the same."""
    graph = call.graph
    named = [(index, (name, rows, wrap, ignored)) for name in ("sorted", "order")]
    if named[0] not in graph.copies:
        keys = _keys(call, index, rows, wrap, ignored)
        made = [graph.buffer(name, keys.shape, kind, (1,), index.device)
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


def _keys(call: Call, index: Tensor, rows: int, wrap: bool, ignored: int) -> Tensor:
    nest = Nest(call.graph, "keys", index.shape, [aligned(index, index.rank)])
    given = nest.read(index).to(dtypes.i64)
    inside = [is_inside(given, -rows if wrap else 0, rows)]
    inside += [given.ne(ignored)] if ignored >= 0 else []
    key = where(all_of(inside), in_range(given, rows, wrap), rows)
    kind, offset = key_type(rows)
    key = key - offset if offset else key
    spec = Spec(index.shape, contiguous_strides(index.shape), kind, index.device)
    made = nest.store(key.to(kind), spec)
    nest.close()
    return call.reshaped(made, (product(index.shape),))
