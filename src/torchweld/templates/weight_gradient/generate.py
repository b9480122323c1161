"""Gradients of weights in C++: the loops of sums.h, with the window's sides as constants."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.size import Size
from torchweld.templates.conv.cpu.generate import header
from torchweld.templates.pointwise_reduce.cpu import generate as cpp
from torchweld.templates.weight_gradient.schedule import Layout, WeightSums

_ABSENT = (1, 1, 1, 1, 1, 0)  # a side that images do not have
_LOOPS = Path(__file__).with_name("sums.h")


def generate(comp: Comp, sums: WeightSums, buffers: Mapping[str, Buffer]) -> KernelBundle:
    """The C++ of `comp`, which is `sums`. All sizes but the window's are arguments."""
    names = tuple(dict.fromkeys((sums.points, sums.image, sums.weight)))
    numbers = {f"g{i}": n for i, n in enumerate(_geometry(comp, sums))}
    text = _text(sums, comp, buffers, names, tuple(numbers))
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    text = with_headers(text.replace("KERNEL", name), header(_LOOPS))
    args = (*map(BufferArg, names), *map(SizeArg, numbers.values()))
    return KernelBundle(comp.name, (KernelSource("cpp", name, text, args),))


def _geometry(comp: Comp, sums: WeightSums) -> list[Size]:
    """The numbers of the struct of sums.h, in order."""
    absent = 3 - len(sums.windows)
    numbers: list[Size] = [sums.groups, sums.images, sums.channels, sums.results]
    for at in (sums.points_at, sums.image_at):
        numbers += _strides(at, absent)
    numbers += [*sums.weight_strides[:2], *[0] * absent, *sums.weight_strides[2:]]
    numbers += _ABSENT * absent
    for w in sums.windows:
        numbers += (w.size, comp.extent(w.out), w.taps, w.stride, w.dilation, w.padding)
    return numbers


def _strides(at: Layout, absent: int) -> list[Size]:
    return [at.start, at.image, at.channel, *[0] * absent, *at.sides]


def _text(sums: WeightSums, comp: Comp, buffers, names, symbols) -> str:
    e, pointers = Emitter(), {n: f"p{i}" for i, n in enumerate(names)}
    parts = [pointers[n] for n in (sums.points, sums.image, sums.weight)]
    *_, high, wide = (1, *(w.taps for w in sums.windows))
    threads = "omp_get_thread_num(), omp_get_num_threads()"
    with e.block('extern "C" void KERNEL(void* const* P, const int64_t* S)'):
        cpp.declare(e, buffers, names, symbols, set(comp.writes))
        e.line(f"const tw_weight_sums a = {{{', '.join([*parts, *(f'n_{s}' for s in symbols)])}}};")
        e.line("const int64_t threads = omp_get_max_threads();")
        e.line("float* sums = (float*)malloc(tw_weight_room(a, threads) * sizeof(float));")
        e.line("#pragma omp parallel")
        e.line(f"tw_weight_gradient<{high}, {wide}>(a, {threads}, threads, sums);")
        e.line("free(sums);")
    return e.text
