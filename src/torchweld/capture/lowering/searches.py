"""Places among sorted numbers: searchsorted and bucketize.

A search by halves, step by step as ATen's (`cus_lower_bound` of Bucketization.cpp and .cu), so that
numbers that are not in order, or NaN, are told the same place. Its steps are known, since the
length is: it joins what makes the values, and what looks at the places.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.capture.lowering.call import Call, need_arithmetic
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import COMPUTED, Nest, Operand, Place
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered
from torchweld.ir.interval import type_bounds
from torchweld.ir.views import Tensor

_LONGEST = type_bounds(dtypes.i32)[1]


@lowers("aten.searchsorted.Tensor")
def searchsorted(
    call: Call,
    ordered: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
):
    """Rows of the values among rows of `ordered`, or all among the only row."""
    if sorter is not None:
        raise NotLowered("a search by way of an order")
    rows = range(ordered.rank - 1) if ordered.rank > 1 else ()
    return _searched(call, ordered, values, tuple(rows), right or side == "right")


@lowers("aten.bucketize.Tensor")
def bucketize(
    call: Call, values: Tensor, ordered: Tensor, *, out_int32: bool = False, right: bool = False
):
    return _searched(call, ordered, values, (), right)


def _searched(
    call: Call, ordered: Tensor, values: Tensor, rows: tuple[int, ...], right: bool
) -> Tensor:
    length = ordered.shape[-1]
    if not isinstance(length, int) or not 0 < length <= _LONGEST:
        raise NotLowered("a search among numbers of which there is none, or nobody knows how many")
    if ordered.dtype != values.dtype:
        raise NotLowered("a search among numbers of another dtype")
    need_arithmetic(values.dtype)
    among: Operand = (ordered, (*rows, COMPUTED))
    nest = call.nest(values.shape, values, extra=[among])
    value = nest.read(values, exact=True)
    return call.finish(nest, _place(nest, ordered, rows, length, value, right))


def _place(
    nest: Nest, ordered: Tensor, rows: Sequence[Place], length: int, value: Expr, right: bool
) -> Expr:
    """The first place whose element is not before the value; `right`: whose element is behind."""
    start, end = nest.number(0, dtypes.i32), nest.number(length, dtypes.i32)
    for _ in range(length.bit_length()):
        middle = start + (end - start).op("shr", 1)
        looked_at = middle.minimum(length - 1)  # not beyond the last, once the place is found
        found = nest.read(ordered, (*rows, looked_at.to(dtypes.i64)), exact=True)
        behind = (found > value if right else found >= value).logical_not()
        left = start < end
        start, end = (
            where(left & behind, middle + 1, start),
            where(left & behind.logical_not(), middle, end),
        )
    return start.minimum(length)
