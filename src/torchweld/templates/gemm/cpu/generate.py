"""The C++ of a product of matrices on a CPU, with what follows it (product.h has the loops)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.ir import size
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.expand import expanded
from torchweld.ir.nodes import Buffer, Comp
from torchweld.templates.gemm.cpu import emit
from torchweld.templates.gemm.cpu.schedule import CpuProduct
from torchweld.templates.pointwise_reduce.cpu.generate import (
    PART,
    declare,
    declare_sizes,
    launch,
    size_symbols,
)

FINISH = (
    "void* const* P, const int64_t* S, int64_t batch, int64_t row0, int64_t rows, "
    "int64_t column0, int64_t columns, const float* c, int64_t c_row"
)
MULTIPLY = (
    "void* const* P, const int64_t* S, int64_t batch, int64_t tid, int64_t parts, int64_t crew"
)


def generate(
    comp: Comp,
    product: CpuProduct,
    buffers: Mapping[str, Buffer],
    hints: Mapping[str, int] | None = None,
) -> KernelBundle:
    """The C++ of `comp`, which is `product`."""
    accesses = addressed(expanded(comp), buffers, hints)
    device = buffers[comp.writes[0]].device
    scratch = emit.scratch_buffers(product, accesses, device)
    buffers = {**buffers, **{b.name: b for b in scratch}}
    names = (*dict.fromkeys(a.buffer for a in accesses.all), *(b.name for b in scratch))
    symbols = tuple(sorted(size_symbols(accesses)))
    text = _text(accesses, product, buffers, names, symbols)
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    args = (*map(BufferArg, names), *(SizeArg(size.symbol(s)) for s in symbols))
    text = with_headers(text.replace("KERNEL", name), emit.header())
    return KernelBundle(comp.name, (KernelSource("cpp", name, text, args),), scratch=scratch)


def _text(accesses: Accesses, product: CpuProduct, buffers, names, symbols) -> str:
    e = Emitter()
    pointers = {n: f"p{i}" for i, n in enumerate(names)}
    k = emit.product_kernel(accesses, product, buffers, pointers)
    written = {*accesses.comp.writes, "packed", "sums"}
    with e.block(f"static void finish({FINISH})"):
        declare(e, buffers, names, symbols, written)
        emit.emit_finish(k, e, product)
    with e.block(f"static void multiply({MULTIPLY})"):
        declare(e, buffers, names, symbols, written)
        emit.emit_product(k, e, product)
    with e.block(f"static void part({PART})"):
        declare_sizes(e, symbols)
        emit.emit_batch(k, e, product)
    with e.block('extern "C" void KERNEL(void* const* P, const int64_t* S)'):
        launch(e, k, symbols)
    return e.text
