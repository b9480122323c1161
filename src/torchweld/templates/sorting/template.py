"""Rows of integers in order, on a CPU (sorting.h), in a kernel that does nothing else. Rows are
contiguous in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchweld.codegen.cpp.expr import ctype
from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.access import linear, sorts
from torchweld.ir.nodes import Comp, Load, Scan
from torchweld.ir.size import Size, product
from torchweld.templates.pointwise_reduce.price import cost
from torchweld.templates.template import Problem, Template, no_reference

_LOOPS = Path(__file__).with_name("sorting.h")
_TEXT = """extern "C" void {name}(void* const* P, const int64_t* S) {{
  tw_sort_rows<{kind}>((const {kind}*)P[0], ({kind}*)P[1], S[0], S[1]);
}}
"""


@dataclass(frozen=True)
class Rows:
    """Of how many integers, and how many they are; the buffers."""

    count: Size
    length: int
    source: str
    target: str
    dtype: DType


def is_alone(comp: Comp) -> bool:
    """Whether it does nothing but sort."""
    kinds = [type(i) for i in comp.body]
    return kinds == [Load, Scan] and len(comp.stores) == 1 and comp.stores[0].value == 1


def match(problem: Problem) -> Rows | None:
    if not sorts(problem.comp) or not is_alone(problem.comp):
        return None
    accesses = problem.accesses
    comp, columns, rows = accesses.comp, accesses.frame.columns, accesses.frame.rows
    length, count = (product(comp.extent(a) for a in axes) for axes in (columns, rows))
    wanted = 1, length if rows else 0, 0
    for access in accesses.all:
        along, across = (linear(accesses, access.offset, axes) for axes in (columns, rows))
        if access.refs or (along, across, access.offset.const) != wanted:
            return None
    (load, scan), (store,) = problem.comp.body, problem.comp.stores
    return Rows(count, length, load.buffer, store.buffer, scan.dtype)


def supports(rows: Rows, problem: Problem) -> str | None:
    return None if rows.dtype in (dtypes.i32, dtypes.i64) else f"no order of {rows.dtype}"


def candidates(rows: Rows, problem: Problem) -> Iterator[Rows]:
    yield rows


def price(rows: Rows, schedule: Rows, problem: Problem) -> float:
    return cost(problem.comp, problem.buffers, problem.hints, problem.target).seconds


def generate(rows: Rows, schedule: Rows, problem: Problem) -> KernelBundle:
    kind = ctype(rows.dtype)
    name = f"tw_sort_rows_of_{kind}"
    text = with_headers(_TEXT.format(name=name, kind=kind), _LOOPS.read_text())
    args = (BufferArg(rows.source), BufferArg(rows.target), SizeArg(rows.count),
            SizeArg(rows.length))  # fmt: skip
    return KernelBundle(problem.comp.name, (KernelSource("cpp", name, text, args),))


TEMPLATE = Template("sorting", match, supports, candidates, price, generate, no_reference)
