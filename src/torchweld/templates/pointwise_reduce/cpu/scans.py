"""Which scans along a lane of columns are made for a block of elements at a time, and how."""

from __future__ import annotations

from collections.abc import Collection

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.nodes import Scan, Value, needed
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel

_EXTREMES = (dtypes.f32, dtypes.f64, dtypes.i32, dtypes.i64)
# Functions of vectors.h: for which dtypes, and the call up to its accumulators.
_FUNCTIONS: dict[str, tuple[tuple[DType, ...], str]] = {
    "sum": ((dtypes.f32,), "tw_running_sums(A{0}"),
    "max": (_EXTREMES, "tw_running_max(A{0}"),
    "min": (_EXTREMES, "tw_running_min(A{0}"),
    "logaddexp": ((dtypes.f32, dtypes.f64), "tw_running_log_sums(A{0}, R{0}"),
}


def of_block(k: Kernel, value: Value) -> str:
    """The call that makes a scan of a block in vectors, up to what it reads and writes, where there
    is one and no later stage reads the scan; empty if not."""
    scan = k.body[value]
    kinds, text = _FUNCTIONS.get(scan.monoid, ((), ""))
    same = scan.dtype == k.body[scan.arg].dtype and scan.dtype in kinds
    return text.format(value) if same and value not in k.stages.kept else ""


def levels(k: Kernel, scans: tuple[Value, ...], known: Collection[Value]) -> list[list[Value]]:
    """The scans in the order in which they can be made: none of a level is made of another of it.
    `known`: values that are there before all."""
    found: list[list[Value]] = []
    there, left = set(known), scans
    while left:
        within = {v: needed(k.body, [k.body[v].arg], stop=there) - there for v in left}
        found.append([v for v in left if within[v].isdisjoint(left)])
        there.update(found[-1])
        left = tuple(v for v in left if v not in there)
    return found


def made(k: Kernel, stage: int, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The scans among `values` that no stage before has made."""
    before = {v for loop in k.stages.loops[:stage] for v in loop}
    return tuple(v for v in values if isinstance(k.body[v], Scan) and v not in before)
