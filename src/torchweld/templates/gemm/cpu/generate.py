"""The C++ of a product of matrices on a CPU, with what follows it (product.h has the loops)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.ir import size
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.expand import expanded
from torchweld.ir.nodes import Buffer, Comp, Index
from torchweld.ir.size import Size
from torchweld.templates.gemm.cpu import emit
from torchweld.templates.gemm.cpu.schedule import CpuProduct
from torchweld.templates.pointwise_reduce.cpu.generate import (
    PART,
    address_notes,
    declare,
    declare_sizes,
    launch,
    size_symbols,
)
from torchweld.templates.pointwise_reduce.cpu.kernel import LANES

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
    """The C++ of `comp`, which is `product`. Sizes and strides are arguments where they can be, so
    that products with the same things following them are compiled once."""
    accesses = addressed(expanded(comp), buffers, hints)
    device = buffers[comp.writes[0]].device
    scratch = emit.scratch_buffers(product, accesses, device)
    buffers = {**buffers, **{b.name: b for b in scratch}}
    names = (*dict.fromkeys(a.buffer for a in accesses.all), *(b.name for b in scratch))
    numbers: dict[str, Size] = {s: size.symbol(s) for s in sorted(size_symbols(accesses))}
    if not numbers and not product.few and not _asks_for_positions(accesses):
        accesses, product, numbers = _with_symbols(accesses, product)
    text = _text(accesses, product, buffers, names, tuple(numbers))
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    args = (*map(BufferArg, names), *map(SizeArg, numbers.values()))
    text = with_headers(text.replace("KERNEL", name), emit.header())
    return KernelBundle(comp.name, (KernelSource("cpp", name, text, args),), scratch=scratch)


def _asks_for_positions(accesses: Accesses) -> bool:
    """What follows the sums is then written for the sizes: conditions cut loops at them."""
    return any(isinstance(i, Index) for i in accesses.comp.body)


def _with_symbols(
    accesses: Accesses, product: CpuProduct
) -> tuple[Accesses, CpuProduct, dict[str, Size]]:
    """Both with a symbol in the place of each extent, stride and size of a block, and what they
    are. Short strides stay: what lies two apart is read along its line."""
    accesses, numbers = emit.with_symbols(accesses, LANES)
    blocks = {"block": product.block, "stretch": product.stretch}
    comp = accesses.comp
    numbers |= blocks | {f"x{i}": axis.extent for i, axis in enumerate(comp.axes)}
    axes = (replace(axis, extent=size.symbol(f"x{i}")) for i, axis in enumerate(comp.axes))
    accesses = replace(accesses, comp=replace(comp, axes=tuple(axes)))
    return accesses, replace(product, **{name: size.symbol(name) for name in blocks}), numbers


def _text(accesses: Accesses, product: CpuProduct, buffers, names, symbols) -> str:
    e = Emitter()
    pointers = {n: f"p{i}" for i, n in enumerate(names)}
    k = emit.product_kernel(accesses, product, buffers, pointers)
    written = {*accesses.comp.writes, "packed", "sums"}
    e.lines(address_notes(accesses))
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
