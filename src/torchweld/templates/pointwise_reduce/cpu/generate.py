"""Generates the C++ of one kernel.

    static void part(P, S, tid, parts, shared)     one thread's share
      outer points: values that do not vary within a row, then the stages' loop nests
      column reductions: partial sums of every thread combined in order, and what follows them
    extern "C" void NAME(P, S)                     one parallel region around it

The text depends on shapes, strides and dtypes, not on names of buffers: equal kernels have equal
texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torchweld.codegen.cpp.expr import memory_type, size_text
from torchweld.codegen.cpp.flags import PLAIN_ADDRESSES, WHOLE_BLOCKS
from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.ir import size
from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Buffer, Comp, Index
from torchweld.ir.size import Poly, Size
from torchweld.templates.pointwise_reduce.cpu import schedule as cpu
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel, kernel
from torchweld.templates.pointwise_reduce.cpu.rows import emit_part
from torchweld.templates.pointwise_reduce.cpu.schedule import CpuSchedule
from torchweld.templates.pointwise_reduce.cpu.stages import own_cost
from torchweld.templates.pointwise_reduce.cpu.values import with_own_pointers

# A parallel region costs a few microseconds: this many multiply-adds on one core.
PARALLEL_WORK = 1 << 17
PART = "void* const* P, const int64_t* S, int64_t tid, int64_t parts, char* shared"


def generate(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    schedule: CpuSchedule | None = None,
    hints: Mapping[str, int] | None = None,
) -> KernelBundle:
    """The C++ of a planned Comp. `schedule`: schedule.cpu's by default. `hints`: typical values of
    symbols. Raises InvalidIR for a Comp without a frame."""
    accesses = cpu.formed(comp, buffers, hints)
    schedule = schedule or cpu.schedule(comp, buffers, hints)
    names = tuple(dict.fromkeys(a.buffer for a in accesses.all))
    symbols = tuple(sorted(size_symbols(accesses)))
    text = _text(accesses, buffers, schedule, names, symbols)
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    args = (*map(BufferArg, names), *(SizeArg(size.symbol(s)) for s in symbols))
    source = KernelSource("cpp", name, with_headers(text.replace("KERNEL", name)), args)
    prefill = tuple((s.buffer, s.init) for s in comp.stores if s.init is not None)
    return KernelBundle(comp.name, (source,), prefill=tuple(dict.fromkeys(prefill)))


def size_symbols(accesses: Accesses) -> frozenset[str]:
    """The shape symbols that extents, offsets and strides depend on."""
    found: set[str] = set()
    for extent in (a.extent for a in accesses.comp.axes):
        found |= size.symbols(extent)
    maps = [a.offset for a in accesses.all]
    maps += [i.map for i in accesses.comp.body if isinstance(i, Index)]
    for index in maps:
        found |= size.symbols(index.const)
        for _, coefficient in index.terms:
            found |= size.symbols(coefficient)
    for access in accesses.all:
        for _, stride in access.refs:
            found |= size.symbols(stride)
    return frozenset(found)


def _text(accesses: Accesses, buffers, schedule: CpuSchedule, names, symbols) -> str:
    e = Emitter()
    k = kernel(accesses, schedule, buffers, {n: f"p{i}" for i, n in enumerate(names)})
    e.lines([*address_notes(accesses), *_length_notes(k)])
    with e.block(f"static void part({PART})"):
        declare(e, buffers, names, symbols, set(accesses.comp.writes))
        k = with_own_pointers(k, e)
        emit_part(k, e)
    with e.block('extern "C" void KERNEL(void* const* P, const int64_t* S)'):
        launch(e, k, symbols)
    return e.text


def address_notes(accesses: Accesses) -> list[str]:
    """The line that says how addresses are compiled, where something may be read backwards."""
    maps = [a.offset for a in accesses.all]
    maps += [i.map for i in accesses.comp.body if isinstance(i, Index)]
    backwards = any(size.is_negative(step) for index in maps for _, step in index.terms)
    return [PLAIN_ADDRESSES] if backwards else []


def _length_notes(k: Kernel) -> list[str]:
    """The line that says that gcc knows how long loops over a block of rows are."""
    lane = k.row_lane
    return [WHOLE_BLOCKS] if lane and k.has_whole_tiles(lane, k.lane_block) else []


def declare(e: Emitter, buffers, names, symbols, written: set[str]) -> None:
    """The arguments of a kernel as locals: pointers p0.. to the buffers, sizes n_SYMBOL."""
    for k, name in enumerate(names):
        kind = ("" if name in written else "const ") + memory_type(buffers[name].dtype)
        e.line(f"{kind}* __restrict__ const p{k} = ({kind}*)P[{k}];")
    declare_sizes(e, symbols)


def declare_sizes(e: Emitter, symbols) -> None:
    for k, symbol in enumerate(symbols):
        e.line(f"const int64_t n_{symbol} = S[{k}];")


def launch(e: Emitter, k: Kernel, symbols) -> None:
    """The body of a kernel's entry point: one parallel region around `part`."""
    declare_sizes(e, symbols)
    serial, size_each = k.schedule.distribute == "serial", k.shared_bytes
    threads = "1" if serial else "omp_get_max_threads()"
    shared = f"(char*)malloc({threads} * {size_text(size_each)})" if size_each else "nullptr"
    e.line(f"char* const shared = {shared};")
    alone, parallel = "part(P, S, 0, 1, shared);", f"{_work(k.accesses)} > {PARALLEL_WORK}"
    if serial:
        e.line(alone)
    else:
        if k.schedule.distribute == "inner":  # a lane of known length, where a thread has all of it
            e.line(f"if ({threads} == 1 || !({parallel})) {alone} else")
        e.line(f"#pragma omp parallel if ({parallel})")
        e.line("part(P, S, omp_get_thread_num(), omp_get_num_threads(), shared);")
    if size_each:
        e.line("free(shared);")


def _work(accesses: Accesses) -> str:
    """Multiply-adds of the whole kernel."""
    points: Size = size.product(a.extent for a in accesses.comp.axes)
    cost = max(1, round(sum(own_cost(i) for i in accesses.comp.body)))
    return (
        size_text(points * cost)
        if not isinstance(points, Poly)
        else f"{size_text(points)} * {cost}"
    )
