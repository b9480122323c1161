"""Writes by indices of which one counts rows, so that each row gets one element: a choice for each
element of the result, in the order of memory, in place of a scatter.

    index_put(x, [arange(n), labels], v)  ->  y[i, j] = v[i] if j == labels[i] else x[i, j]
"""

from __future__ import annotations

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.indexing import IndexLayout
from torchweld.capture.lowering.nest import Nest
from torchweld.capture.lowering.ranges import all_of, is_inside, run_of
from torchweld.core import dtypes
from torchweld.ir import views
from torchweld.ir.affine import Affine
from torchweld.ir.views import Tensor

Rows = tuple[int, int, int]  # (dimension, first row, count)


def rows_of(layout: IndexLayout) -> Rows | None:
    """The rows of one dimension, one after the other, that get one element each."""
    for d in layout.indexed if layout.rank == 1 else ():
        index, size = layout.indices[d], layout.x.shape[d]
        first, count, step = (index.rank == 1 and run_of(index)) or (0, 0, 0)
        within = isinstance(size, int) and 0 <= first <= size - count
        if step == 1 and within and count == layout.shape()[layout.first]:
            return d, first, count
    return None


def put_one_each(
    call: Call, layout: IndexLayout, rows: Rows, values: Tensor, accumulate: bool
) -> Tensor:
    """x with `values` in the places of x[indices], or added there. An index that is out of range
    writes nothing."""
    x, (d, first, count) = layout.x, rows
    given = views.expand(values, layout.shape())
    kept = {place: k for k, place in enumerate(layout.free_places()) if place is not None}
    read = [kept.get(place) for place in range(given.rank)]
    others = [k for k in layout.indexed if k != d]
    operands = [(given, tuple(read)), *((layout.indices[k], (None,)) for k in others)]
    nest = call.nest(x.shape, x, extra=operands)
    at = nest.at(d) + -first
    here = [] if count == x.shape[d] else [is_inside(nest.position(d), first, first + count)]
    here += [_is_here(nest, layout, k, at, all_of(here)) for k in others]
    chosen, before = all_of(here), nest.read(x)
    value = nest.read(given, [at if k is None else k for k in read], guard=chosen)
    if accumulate:
        value = (before.widen() + value.widen()).to(x.dtype)
    return call.finish(nest, value if chosen is None else where(chosen, value, before))


def _is_here(nest: Nest, layout: IndexLayout, k: int, at: Affine, there: Expr | None) -> Expr:
    """Whether the index of a row names this point along dimension `k`."""
    index = nest.read(layout.indices[k], [at], guard=there).to(dtypes.i64)
    return where(index < 0, index + layout.x.shape[k], index).eq(nest.position(k))
