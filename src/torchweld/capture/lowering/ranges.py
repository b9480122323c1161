"""Indices of the user's, kept inside the tensors that they point into.

Every index is wrapped (negative ones count from the end) and clamped, so that no access leaves its
buffer. One that was out of range is an error all the same. On a CPU the call stops: a Comp reduces
the indices to a flag, and `torchweld.check_index` raises. A GPU's stream is not stopped to look at
a flag: there the flag stays set until the host looks (`runtime/index_flags.py`), and until then a
float that is read by such an index is NaN, and nothing is written by it.

Indices that cannot be out of range by their making (constants, progressions, what the user clamped)
need nothing of this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchweld.capture.lowering.build import GraphBuilder
from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest, Spec, aligned
from torchweld.core import dtypes
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.interval import Bounds, stored_bounds, type_bounds
from torchweld.ir.nodes import Comp, Extern, Node, View
from torchweld.ir.size import Size
from torchweld.ir.views import Fill, Iota, Tensor

# Calls whose second result is places along a dimension of their first argument: which of the other
# arguments that is (by name in sort.stable).
_PLACES = {
    "aten.sort.default": 0, "aten.sort.stable": 0, "aten.mode.default": 0, "aten.median.dim": 0,
    "aten.nanmedian.dim": 0, "aten.cummax.default": 0, "aten.cummin.default": 0,
    "aten.topk.default": 1, "aten.kthvalue.default": 1,
}  # fmt: skip


def in_range(index: Expr, size: Size, wrap: bool = True, guarded: bool = False) -> Expr:
    """An i64 index inside [0, size): the nearest. `guarded`: whoever reads or writes by it asks
    first whether it was inside, so that the rest may be any; 32 bits of it are enough then, in
    which a GPU computes places."""
    small = guarded and isinstance(size, int) and size <= type_bounds(dtypes.i32)[1]
    index = index.to(dtypes.i32 if small else dtypes.i64)
    if wrap:
        index = where(index < 0, index + size, index)
    return index.maximum(0).minimum(size - 1).to(dtypes.i64)


def is_inside(index: Expr, lowest: Size, extent: Size) -> Expr:
    """Whether an index lies in [lowest, extent)."""
    index = index.to(dtypes.i64)
    return (index >= lowest) & (index < extent)


def read_where(nest: Nest, x: Tensor, places, guards: Sequence[Expr]) -> Expr:
    """The element of `x` at places in its range; NaN for a float, where not all guards are true."""
    if not guards or not x.dtype.is_float:
        return nest.read(x, places)
    return nest.read(x, places, guard=all_of(guards), fill=math.nan)


def all_of(guards: Sequence[Expr]) -> Expr | None:
    """The conjunction; None of none."""
    first, *rest = guards or (None,)
    for guard in rest:
        first = first & guard
    return first


def check_range(
    call: Call, index: Tensor, extent: Size, lowest: Size = 0, ignored: int | None = None
) -> bool:
    """Appends what notices an index that is neither in [lowest, extent) nor `ignored`; once for the
    same indices and bounds. Whether accesses by such an index must be guarded: the call goes on."""
    index, graph, device = _each_once(index), call.graph, call.out.device
    if is_within(graph, index, lowest, extent):
        return False
    on_cpu = device == "cpu"  # an index there may point into a GPU's tensor
    key = (index, lowest, extent, ignored)
    if (on_cpu or index.device == device) and key not in graph.checked:
        graph.checked[key] = None
        _check(graph, index, extent, lowest, ignored, on_cpu)
    return not on_cpu


def _check(
    graph: GraphBuilder, index: Tensor, extent: Size, lowest: Size, ignored, on_cpu: bool
) -> None:
    nest = Nest(graph, "check_index", index.shape, [aligned(index, index.rank)])
    value = nest.read(index).to(dtypes.i64)
    outside = is_inside(value, lowest, extent).logical_not()
    if ignored is not None:
        outside = outside & value.ne(ignored)
    if on_cpu:
        flag = nest.reduce("any", outside, range(index.rank))
        result = graph.view_of(nest.store(flag, Spec((), (), dtypes.b1, "cpu"), ()))
    else:  # no reduction: it can join any kernel that reads the indices
        flag = graph.buffer("check_index", (), dtypes.b1, (), index.device)
        nest.put(flag, (), nest.number(True, dtypes.b1), init=0, guard=outside.value)
        result = View(flag.name, (), ())
    nest.close(op=CHECK_INDEX)
    args, name = (result, lowest, extent), graph.node_name("check_index")
    graph.emit(Extern(name, CHECK_INDEX, args, (), (), (), (graph.origin,)))


def _each_once(index: Tensor) -> Tensor:
    """The same elements without those that a broadcast repeats, and without empty dimensions."""
    dims = (tuple(a for a in dim if a.steps or a.extent == 0) for dim in index.dims)
    return replace(index, dims=tuple(dim for dim in dims if dim), copied=False)


def is_within(graph: GraphBuilder, index: Tensor, lowest: Size, extent: Size) -> bool:
    """Whether the elements are known to be in [lowest, extent)."""
    ends = _ends(index) if index.buffer is None else _bounds_of(graph, index.buffer)
    if ends is None:
        return False
    room = (ends[0] - lowest, extent - 1 - ends[1])
    return all(isinstance(r, int) and r >= 0 for r in room)


def _bounds_of(graph: GraphBuilder, buffer: str) -> Bounds | None:
    """What is known of a buffer's elements from what makes it."""
    known: dict[str, Bounds | None] = {}
    todo = [buffer]
    while todo:  # no recursion: indices may be computed by thousands of operations
        name = todo[-1]
        maker, *others = graph.writers(name) or (None,)
        if others or name in graph.mutated:
            maker = None
        computed = isinstance(maker, Comp)
        missing = [b for b in maker.reads if b not in known] if computed else []
        if name not in known and missing:
            known[name] = None  # until it is found: no Comp reads what it writes
            todo += missing
            continue
        todo.pop()
        known[name] = (
            stored_bounds(maker, name, known.get) if computed else _bounds_of_places(maker, name)
        )
    return known[buffer]


def _bounds_of_places(maker: Node | None, buffer: str) -> Bounds | None:
    """Of the places that a library call finds things at, along one dimension of its operand."""
    if not isinstance(maker, Extern) or maker.target not in _PLACES or buffer == maker.outputs[0]:
        return None
    (operand, *others), at = maker.args, _PLACES[maker.target]
    given = others[at] if at < len(others) else dict(maker.kwargs).get("dim", -1)
    extent = operand.shape[given] if operand.shape else 1
    return (0, extent - 1) if isinstance(extent, int) else None


def _ends(index: Tensor) -> tuple[Size, Size] | None:
    """(smallest, largest) element of what takes no memory; None where that is not known."""
    if isinstance(index.source, Fill):
        return int(index.source.value), int(index.source.value)
    if not isinstance(index.source, Iota):
        return None
    low = high = index.base[0]
    for atom in (a for dim in index.dims for a in dim):
        step = sum((c for _, c in atom.steps), 0)
        if not isinstance(step, int):
            return None
        reach = (atom.extent - 1) * step
        low, high = (low, high + reach) if step > 0 else (low + reach, high)
    return low, high


def run_of(index: Tensor) -> tuple[int, int, int] | None:
    """(first, count, step) of one dimension of integers that take no memory: the step is not zero.
    None where they are not known, or none, or equal."""
    ends, (count,) = _ends(index) if index.buffer is None else None, index.shape
    if ends is None or not isinstance(count, int) or not count:
        return None
    if ends[0] == ends[1]:
        return (ends[0], 1, 1) if count == 1 else None
    (dim,) = index.dims
    if len(dim) != 1:
        return None
    step = sum((c for _, c in dim[0].steps), 0)
    return (ends[0] if step > 0 else ends[1]), count, step
