"""Convolutions in C++: the loops of convolution.h or depthwise.h, and what follows the sums.

static void prepare(P, S, result, results, fixed)     what is the same for all pixels of a channel
static void finish(P, S, image, result, fixed, pixel, count, sums)     one run of pixels
extern "C" void NAME(P, S)                            tw_convolve(..., prepare, finish)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer, Cast, Comp, Load, Op, Value, needed, operands
from torchweld.ir.size import Size
from torchweld.templates.conv.cpu.schedule import SUMS, CpuConvolution
from torchweld.templates.gemm.cpu import emit as cpp_product
from torchweld.templates.pointwise_reduce.cpu import generate as cpp
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel, kernel
from torchweld.templates.pointwise_reduce.cpu.schedule import CpuSchedule
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, emit_lane

_ABSENT = (1, 1, 1, 1, 1, 0)  # a dimension that images do not have
_PREPARE = "void* const* P, const int64_t* S, int64_t result, int64_t results, float* fixed"
_FINISH = (
    "void* const* P, const int64_t* S, int64_t image, int64_t result, const float* fixed, "
    "int64_t pixel, int64_t count, const float* sums"
)


HERE = Path(__file__).parent


@cache
def header(loops: Path) -> str:
    """What a file of loops over images is compiled with beside the common header, and the file."""
    own = (HERE / "images.h", loops)
    return cpp_product.header() + "".join(file.read_text() for file in own)


def generate(
    comp: Comp, convolution: CpuConvolution, buffers: Mapping[str, Buffer]
) -> KernelBundle:
    """The C++ of `comp`, which is `convolution`. Sizes and strides are arguments, so that all
    convolutions with the same things following them are compiled once."""
    names = tuple(dict.fromkeys((*comp.reads, *comp.writes)))
    pointers = {n: f"p{i}" for i, n in enumerate(names)} | {SUMS: "sums"}
    shown = {**buffers, SUMS: buffers[convolution.image.buffer]}  # also float32
    nest = (convolution.pixel,) if convolution.pixel else ()
    finish, strides = cpp_product.with_symbols(convolution.finish)
    k = kernel(finish, CpuSchedule((), nest, "column", "rows"), shown, pointers)
    geometry = _geometry(comp, convolution, buffers)
    numbers = {f"g{i}": n for i, n in enumerate(geometry)} | strides
    text = _text(k, comp, convolution, buffers, names, tuple(numbers))
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    args = (*map(BufferArg, names), *map(SizeArg, numbers.values()))
    loops = header(HERE / f"{_loops(convolution)[0]}.h")
    text = with_headers(text.replace("KERNEL", name), loops)
    return KernelBundle(comp.name, (KernelSource("cpp", name, text, args),))


def _geometry(comp: Comp, c: CpuConvolution, buffers: Mapping[str, Buffer]) -> list[Size]:
    """The numbers of images.h's struct, in order."""
    strides, absent = buffers[c.image.buffer].strides, 3 - len(c.windows)
    numbers = [c.channels.groups, c.images, c.channels.channels, c.channels.results]
    numbers += [*strides[:2], *[0] * absent, *strides[2:-1]]
    for side in [_ABSENT] * absent:
        numbers += side
    for w in c.windows:
        numbers += (w.size, comp.extent(w.out), w.taps, w.stride, w.dilation, w.padding)
    return [*numbers, int(c.transposed)]


def _text(k: Kernel, comp: Comp, convolution: CpuConvolution, buffers, names, symbols) -> str:
    e, parts = Emitter(), _parts(k, convolution)
    e.lines(cpp.address_notes(k.accesses))
    with e.block(f"static void prepare({_PREPARE})"):
        cpp.declare(e, buffers, names, symbols, set(comp.writes))
        _emit_prepare(k, e, convolution, parts)
    with e.block(f"TW void finish({_FINISH})"):
        cpp.declare(e, buffers, names, symbols, set(comp.writes))
        _emit_finish(k, e, convolution, parts)
    with e.block('extern "C" void KERNEL(void* const* P, const int64_t* S)'):
        cpp.declare(e, buffers, names, symbols, set(comp.writes))
        factors = [k.pointers[load.buffer] for load in (convolution.image, convolution.weight)]
        geometry = [f"n_{s}" for s in symbols if s.startswith("g")]
        e.line(f"const tw_convolution a = {{{', '.join(factors + geometry)}}};")
        e.line("#pragma omp parallel")
        with e.block():
            _emit_loops(e, _loops(convolution)[1], parts)
    return e.text


def _loops(convolution: CpuConvolution) -> tuple[str, str]:
    """The header and its function."""
    if convolution.channels.depthwise:
        return "depthwise", "tw_depthwise"
    return "convolution", "tw_convolve"


def _emit_loops(e: Emitter, loops: str, parts: _Parts) -> None:
    e.line(f"float fixed[{max(1, len(parts.fixed))} * TW_RESULTS];")
    e.line(f"{loops}(a, omp_get_thread_num(), omp_get_num_threads(),")
    e.line("    [&](int64_t result, int64_t results) { prepare(P, S, result, results, fixed); },")
    e.line("    [&](int64_t image, int64_t result, int64_t nth, int64_t pixel, int64_t count,")
    e.line("        const float* sums) {")
    e.line("      finish(P, S, image, result, fixed + nth, pixel, count, sums);")
    e.line("    });")


@dataclass(frozen=True, slots=True)
class _Parts:
    """`total`: the sum. `varying`: that, and what varies along the pixels or follows from it, in
    order. `fixed`: what is worked out once for each channel."""

    total: Value
    varying: tuple[Value, ...]
    fixed: tuple[Value, ...]


def _parts(k: Kernel, convolution: CpuConvolution) -> _Parts:
    total = next(v for v, i in enumerate(k.body) if isinstance(i, Load) and i.buffer == SUMS)
    varying = {total}
    for value, instr in enumerate(k.body):
        if convolution.pixel in k.stages.axes[value] or varying.intersection(operands(instr)):
            varying.add(value)
    used = {u for v in varying for u in operands(k.body[v])} - varying
    used |= {s.value for s in k.comp.stores} - varying
    fixed = (v for v in sorted(used) if _is_worked_out(k, v, convolution))
    return _Parts(total, tuple(sorted(varying)), tuple(fixed))


def _is_worked_out(k: Kernel, value: Value, convolution: CpuConvolution) -> bool:
    """Float32 arithmetic on what varies along the channels."""
    instr = k.body[value]
    along = k.stages.axes[value] == {convolution.result}
    return along and isinstance(instr, (Op, Cast)) and instr.dtype == dtypes.f32


def _emit_prepare(k: Kernel, e: Emitter, convolution: CpuConvolution, parts: _Parts) -> None:
    if not parts.fixed:
        return
    e.line("#pragma omp simd")
    with e.block("for (int64_t nth = 0; nth < results; ++nth)"):
        e.line(f"const int64_t {k.names[convolution.result]} = result + nth;")
        texts: Texts = {}
        for value in sorted(needed(k.body, parts.fixed)):
            define(k, e, value, texts)
        for slot, value in enumerate(parts.fixed):
            e.line(f"fixed[{slot} * TW_RESULTS + nth] = v{value};")


def _emit_finish(k: Kernel, e: Emitter, convolution: CpuConvolution, parts: _Parts) -> None:
    """One vectorised loop over the pixels."""
    for axis, where in ((convolution.batch, "image"), (convolution.result, "result")):
        if axis in k.names:
            e.line(f"const int64_t {k.names[axis]} = {where};")
    texts: Texts = {v: f"fixed[{i} * TW_RESULTS]" for i, v in enumerate(parts.fixed)}
    behind = sorted(needed(k.body, (s.value for s in k.comp.stores), stop=texts))
    for value in behind:
        if value not in texts and value not in parts.varying:
            define(k, e, value, texts)
    pixel = convolution.pixel
    position = f"const int64_t {k.names[pixel]} = pixel + at;" if pixel else ""
    header = "for (int64_t at = 0; at < count; ++at)"
    emit_lane(k, e, header, (parts.total, "sums[at]"), behind, texts, position)
