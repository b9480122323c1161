"""The C++ of one pointwise kernel on several lists of tensors (schedule.py).

    static void part(P, S, first, last)     blocks first to last - 1 of one row's tensors
    extern "C" void NAME(P, S)              one parallel region over the blocks of all rows

Each thread has its share of all blocks, so that many short tensors are spread as one long is.
"""

from __future__ import annotations

import hashlib

from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource
from torchweld.ir.nodes import Comp
from torchweld.templates.multi_tensor.schedule import TensorList
from torchweld.templates.pointwise_reduce.cpu.generate import PARALLEL_WORK, declare
from torchweld.templates.pointwise_reduce.cpu.kernel import kernel
from torchweld.templates.pointwise_reduce.cpu.rows import emit_part
from torchweld.templates.pointwise_reduce.cpu.schedule import FLAT_BLOCK, CpuSchedule
from torchweld.templates.pointwise_reduce.cpu.stages import own_cost

_PART = "static void part(void* const* P, const int64_t* S, int64_t first, int64_t last)"


def generate(comp: Comp, tensors: TensorList) -> KernelBundle:
    text = _text(tensors)
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    args = tuple(map(BufferArg, tensors.tensors))
    source = KernelSource("cpp", name, with_headers(text.replace("KERNEL", name)), args)
    return KernelBundle(comp.name, (source,))


def _text(tensors: TensorList) -> str:
    e, names = Emitter(), tuple(tensors.buffers)
    schedule = CpuSchedule(((tensors.axis, FLAT_BLOCK),), (tensors.axis,), "column", "given")
    pointers = {n: f"p{i}" for i, n in enumerate(names)}
    k = kernel(tensors.accesses, schedule, tensors.buffers, pointers)
    with e.block(_PART):
        declare(e, tensors.buffers, names, ("n",), set(k.comp.writes))
        emit_part(k, e)
    with e.block('extern "C" void KERNEL(void* const* P, const int64_t*)'):
        _launch(e, tensors)
    return e.text


def _launch(e: Emitter, tensors: TensorList) -> None:
    lengths, ends = tensors.lengths, [0]
    for length in lengths:
        ends.append(ends[-1] + -(-length // FLAT_BLOCK))
    work = max(1, round(sum(own_cost(i) for i in tensors.accesses.comp.body))) * sum(lengths)
    e.line(f"static const int64_t lengths[] = {{{', '.join(map(str, lengths))}}};")
    e.line(f"static const int64_t ends[] = {{{', '.join(map(str, ends))}}};")
    e.line(f"#pragma omp parallel if ({work} > {PARALLEL_WORK})")
    with e.block():
        e.line("const int64_t tid = omp_get_thread_num(), parts = omp_get_num_threads();")
        e.line(f"const int64_t blocks = {ends[-1]};")
        e.line("const int64_t from = blocks * tid / parts, to = blocks * (tid + 1) / parts;")
        with e.block(f"for (int64_t t = 0; t < {len(lengths)}; ++t)"):
            e.line("const int64_t low = from > ends[t] ? from : ends[t];")
            e.line("const int64_t high = to < ends[t + 1] ? to : ends[t + 1];")
            row = f"P + t * {len(tensors.buffers)}, lengths + t"
            e.line(f"if (low < high) part({row}, low - ends[t], high - ends[t]);")
