"""Max pooling in C++: the loops of pooling.h, and what follows the maxima of a row.

static void finish(P, S, row, maxima)     one row of the result
extern "C" void NAME(P, S)                tw_pool(..., finish)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.ir.nodes import Buffer, Comp, Value, needed, operands
from torchweld.ir.size import Size
from torchweld.templates.conv.cpu.generate import header
from torchweld.templates.conv.cpu.schedule import SUMS
from torchweld.templates.gemm.cpu.emit import with_symbols
from torchweld.templates.pointwise_reduce.cpu import generate as cpp
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel, kernel
from torchweld.templates.pointwise_reduce.cpu.schedule import CpuSchedule
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, emit_lane
from torchweld.templates.pooling.schedule import CpuPooling

_ABSENT = (1, 1, 1, 1, 1, 0)  # a dimension that images do not have
_LOOPS = Path(__file__).with_name("pooling.h")


def generate(comp: Comp, pooling: CpuPooling, buffers: Mapping[str, Buffer]) -> KernelBundle:
    """The C++ of `comp`, which is `pooling`. Sizes and strides are arguments, so that all poolings
    with the same things following them are compiled once."""
    names = tuple(dict.fromkeys((*comp.reads, *comp.writes)))
    pointers = {n: f"p{i}" for i, n in enumerate(names)} | {SUMS: "maxima"}
    shown = {**buffers, SUMS: buffers[pooling.image]}  # also float32
    finish, strides = with_symbols(pooling.finish)
    lane = pooling.windows[-1].out
    k = kernel(finish, CpuSchedule((), (lane,), "column", "rows"), shown, pointers)
    geometry = {f"g{i}": n for i, n in enumerate(_geometry(comp, pooling))}
    extents = {f"e{i}": comp.extent(a) for i, a in enumerate(pooling.planes)}
    numbers = geometry | extents | strides
    text = _text(k, comp, pooling, buffers, names, tuple(numbers))
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    args = (*map(BufferArg, names), *map(SizeArg, numbers.values()))
    text = with_headers(text.replace("KERNEL", name), header(_LOOPS))
    source = KernelSource("cpp", name, text, args)
    return KernelBundle(comp.name, (source,))


def _geometry(comp: Comp, pooling: CpuPooling) -> list[Size]:
    """The numbers of pooling.h's struct, in order."""
    numbers: list[Size] = [pooling.count, *_ABSENT * (3 - len(pooling.windows))]
    for w in pooling.windows:
        numbers += (w.size, comp.extent(w.out), w.taps, w.stride, w.dilation, w.padding)
    return numbers


def _text(k: Kernel, comp: Comp, pooling: CpuPooling, buffers, names, symbols) -> str:
    e = Emitter()
    e.lines(cpp.address_notes(k.accesses))
    with e.block(
        "TW void finish(void* const* P, const int64_t* S, tw_pool_place row, const float* maxima)"
    ):
        cpp.declare(e, buffers, names, symbols, set(comp.writes))
        _emit_finish(k, e, pooling)
    with e.block('extern "C" void KERNEL(void* const* P, const int64_t* S)'):
        cpp.declare(e, buffers, names, symbols, set(comp.writes))
        geometry = [f"n_{s}" for s in symbols if s.startswith("g")]
        numbers = ", ".join([k.pointers[pooling.image], *geometry])
        e.line(f"const tw_pooling a = {{{numbers}}};")
        e.line("#pragma omp parallel if (a.planes * a.d.out * a.h.out * a.w.out > 4096)")
        e.line("tw_pool(a, omp_get_thread_num(), omp_get_num_threads(),")
        e.line("    [&](tw_pool_place row, const float* maxima) { finish(P, S, row, maxima); });")
    return e.text


def _emit_finish(k: Kernel, e: Emitter, pooling: CpuPooling) -> None:
    """One vectorised loop over a row."""
    *outer, lane = (w.out for w in pooling.windows)
    for axis, where in zip(reversed(outer), ("row.h", "row.d")):
        e.line(f"const int64_t {k.names[axis]} = {where};")
    e.line("int64_t plane = row.plane;")
    for number, axis in reversed(list(enumerate(pooling.planes))):
        e.line(f"const int64_t {k.names[axis]} = plane{f' % n_e{number}' if number else ''};")
        e.line(f"plane /= n_e{number};" if number else "")
    texts: Texts = {}
    varying = _varying(k, pooling.total)
    behind = sorted(needed(k.body, (s.value for s in k.comp.stores)))
    for value in behind:
        if value not in varying:
            define(k, e, value, texts)
    width, position = f"n_g{1 + 6 * 2 + 1}", f"const int64_t {k.names[lane]} = at;"
    header = f"for (int64_t at = 0; at < {width}; ++at)"
    emit_lane(k, e, header, (pooling.total, "maxima[at]"), behind, texts, position)


def _varying(k: Kernel, total: Value) -> frozenset[Value]:
    """The maxima, and what varies along a row or follows from them."""
    found = {total}
    for value, instr in enumerate(k.body):
        if k.stages.axes[value] & k.inner_axes or found.intersection(operands(instr)):
            found.add(value)
    return frozenset(found)
