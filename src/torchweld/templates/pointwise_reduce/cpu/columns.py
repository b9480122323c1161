"""Column reductions: sums over the rows of a row kernel (the weight gradients of a norm).

    c[j] += v             each row, in float
    C[tid][j] += c[j]     every ROWS rows, in double, in memory that threads share
    barrier; sum over threads in order, then what follows
The rows of a thread are a fixed range, so the result does not depend on timing.
"""

from __future__ import annotations

from contextlib import ExitStack

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir import size
from torchweld.ir.nodes import Value
from torchweld.ir.size import Size
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.stages import FINAL
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, store, widened

ROWS = 16  # terms: eager's sums along columns begin with chains as long


def declare_columns(k: Kernel, e: Emitter) -> list[str]:
    """Block and thread accumulators of every column reduction; gives the names to free."""
    frees = []
    for value in k.frame.column_reductions:
        kind, count = k.accumulator(value)[0], x.size_text(k.column_count(value))
        e.line(f"{kind}* __restrict__ const c{value} = ({kind}*)malloc(sizeof({kind}) * {count});")
        total = f"{_total_type(k, value)}* __restrict__ const C{value}"
        e.line(f"{total} = {_thread_total(k, value, 'tid')};")
        with e.block(f"for (int64_t j = 0; j < {count}; ++j)"):
            e.line(f"c{value}[j] = {k.identity(value)};")
            e.line(f"C{value}[j] = {k.identity(value)};")
        frees.append(f"c{value}")
    return frees


def accumulate_column(
    k: Kernel, e: Emitter, value: Value, texts: Texts, mask: str | None = None
) -> None:
    """One element joins; along a lane of rows those of the lane, for join_block. `mask`: whether it
    has not joined before."""
    at, arg = f"c{value}[{k.column_offset(value)}]", widened(k, k.body[value].args[0], texts)
    if k.row_lane:
        at = f"r{value}"
    e.line(f"{at} = {k.merged(value, at, k.joining(mask, value, arg))};")


def declare_block(k: Kernel, e: Emitter, values: list[Value]) -> str:
    """The sums of a column over a block of rows, and the clause of their loop."""
    e.lines(f"{k.accumulator(v)[0]} r{v} = {k.identity(v)};" for v in values)
    return f" reduction(+ : {', '.join(f'r{v}' for v in values)})" if values else ""


def join_block(k: Kernel, e: Emitter, values: list[Value]) -> None:
    """What declare_block declared, once it is summed."""
    for value in values:
        at = f"c{value}[{k.column_offset(value)}]"
        e.line(f"{at} = {k.merged(value, at, f'r{value}')};")


def flush_columns(k: Kernel, e: Emitter) -> None:
    """At the end of a row: block sums join the thread's every ROWS rows and after the last."""
    if not k.frame.column_reductions:
        return
    with e.block(f"if ((q - first) % {ROWS} == {ROWS - 1} || q == last - 1)"):
        for value in k.frame.column_reductions:
            e.line("#pragma omp simd")
            with e.block(f"for (int64_t j = 0; j < {x.size_text(k.column_count(value))}; ++j)"):
                partial = f"({_total_type(k, value)})c{value}[j]"
                e.line(f"C{value}[j] = {k.merged(value, f'C{value}[j]', partial)};")
                e.line(f"c{value}[j] = {k.identity(value)};")


def finish_columns(k: Kernel, e: Emitter) -> None:
    """Merges the threads' sums, and computes and stores what follows, each thread for a range of
    columns."""
    if not k.frame.column_reductions:
        return
    if k.schedule.distribute != "serial":
        e.line("#pragma omp barrier")
    columns, texts = k.frame.columns, {}
    longest = max(columns, key=lambda a: size.hint(k.comp.extent(a), {}))
    with ExitStack() as stack:
        for depth in range(len(columns) + 1):
            _final_level(k, e, depth, texts)
            if depth < len(columns):
                _open(k, e, columns[depth], columns[depth] == longest, stack)


def _final_level(k: Kernel, e: Emitter, depth: int, texts: Texts) -> None:
    """Values and stores that vary along `depth` columns, counted from the outermost."""
    columns = k.frame.columns

    def level(axes) -> int:
        return max((d + 1 for d, c in enumerate(columns) if c in axes), default=0)

    for value in k.stages.final:
        if level(k.stages.axes[value]) == depth:
            if value in k.frame.column_reductions:
                _merge_threads(k, e, value, texts)
            else:
                define(k, e, value, texts)
    for position in k.stores_of(FINAL):
        if level(k.store_axes(position)) == depth:
            with ExitStack() as stack:
                if depth == 0:
                    stack.enter_context(e.block("if (tid == 0)"))
                store(k, e, position, texts)


def _merge_threads(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    kind, offset = _total_type(k, value), k.column_offset(value)
    e.line(f"{kind} C{value}_all = {k.identity(value)};")
    other = f"({_thread_total(k, value, 't')})[{offset}]"
    merged = k.merged(value, f"C{value}_all", other)
    e.line(f"for (int64_t t = 0; t < parts; ++t) C{value}_all = {merged};")
    dtype = k.body[value].dtype
    texts[value] = x.cast(f"C{value}_all", dtypes.f64 if dtype.is_float else dtype, dtype)


def _open(k: Kernel, e: Emitter, axis: str, divided: bool, stack: ExitStack) -> None:
    name, extent = k.names[axis], k.extent(axis)
    low, high = (
        (f"{extent} * tid / parts", f"{extent} * (tid + 1) / parts") if divided else ("0", extent)
    )
    stack.enter_context(e.block(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"))


def _total_type(k: Kernel, value: Value) -> str:
    return k.accumulator(value)[1]


def _thread_total(k: Kernel, value: Value, thread: str) -> str:
    """The address of a thread's sums in the shared memory."""
    before: Size = sum((8 * k.column_count(v) for v in k.frame.column_reductions if v < value), 0)
    if k.shares_rows:
        before = before + k.slot_bytes * len(k.row_reductions)
    address = f"shared + {x.size_text(k.shared_bytes)} * {thread} + {x.size_text(before)}"
    return f"({_total_type(k, value)}*)({address})"
