"""The C++ of a product with a dequantised factor, with what follows it.

    static void fill, spread                       (emit.py)
    static void finish(P, S, batch, row0, rows, column0, columns, c, c_row)
    static void part(P, S, tid, parts, shared)     spreads the left factor; then the loops
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource
from torchweld.core import dtypes
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.expand import expanded
from torchweld.ir.nodes import Buffer, Comp
from torchweld.templates.gemm.cpu import emit as plain
from torchweld.templates.gemm.cpu.generate import FINISH
from torchweld.templates.gemm.cpu.schedule import DEEPEST, SLACK_ROWS, block_of
from torchweld.templates.gemm.dequantised import emit
from torchweld.templates.gemm.dequantised.schedule import (
    FEW,
    Dequantised,
    Geometry,
    geometry_of,
)
from torchweld.templates.pointwise_reduce.cpu.generate import PART, address_notes, declare, launch
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel

_TERMS = "void* const* P, const int64_t* S, int64_t {0}, int64_t chunk, float* __restrict to"
_AFTER = (
    "[=](int64_t row, int64_t rows, int64_t column, int64_t columns, const float* c, int64_t c_row)"
    " { finish(P, S, 0, row, rows, column, columns, c, c_row); }"
)
_FILL = "[=](int64_t column, int64_t chunk, float* to) { fill(P, S, column, chunk, to); }"


@cache
def _header() -> str:
    return plain.header() + Path(__file__).with_name("dequantised.h").read_text()


def generate(comp: Comp, product: Dequantised, buffers: Mapping[str, Buffer]) -> KernelBundle:
    """The C++ of `comp`, which is `product`."""
    accesses = addressed(expanded(comp), buffers)
    device = buffers[comp.writes[0]].device
    scratch = scratch_buffers(accesses.comp, product, device)
    buffers = {**buffers, **{b.name: b for b in scratch}}
    names = (*dict.fromkeys(a.buffer for a in accesses.all), *(b.name for b in scratch))
    text = _text(accesses, product, buffers, names, {b.name for b in scratch})
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    text = with_headers(text.replace("KERNEL", name), _header())
    source = KernelSource("cpp", name, text, tuple(map(BufferArg, names)))
    return KernelBundle(comp.name, (source,), scratch=scratch)


def scratch_buffers(comp: Comp, product: Dequantised, device: str) -> tuple[Buffer, ...]:
    """Shared by the threads: the left factor, and for many rows what tw_multiply needs."""
    g, rows = geometry_of(comp, product), _rows(comp, product)
    sizes = {"terms": rows * g.padded}
    if rows > FEW:
        block, stretch = block_of(comp.extent(product.column)), _stretch(g)
        sizes["packed"] = block * stretch
        if stretch != g.padded:
            sizes["sums"] = block * (rows + SLACK_ROWS)
    return tuple(Buffer(n, (size,), dtypes.f32, (1,), device) for n, size in sizes.items())


def _stretch(g: Geometry) -> int:
    """Terms that are packed together."""
    return min(g.padded, max(1, DEEPEST // g.step) * g.step)


def _rows(comp: Comp, product: Dequantised) -> int:
    return comp.extent(product.row) if product.row else 1


def _text(accesses: Accesses, product: Dequantised, buffers, names, scratch: set[str]) -> str:
    e = Emitter()
    pointers = {n: f"p{i}" for i, n in enumerate(names)}
    k = plain.product_kernel(accesses, product, buffers, pointers)
    written = {*accesses.comp.writes, *scratch}
    e.lines(address_notes(accesses))
    functions = (
        (f"static void finish({FINISH})", plain.emit_finish),
        (f"static __attribute__((noinline)) void fill({_TERMS.format('column')})", emit.emit_fill),
        (f"static __attribute__((noinline)) void spread({_TERMS.format('row')})", emit.emit_spread),
        (f"static void part({PART})", _emit_part),
    )
    for header, body in functions:
        with e.block(header):
            declare(e, buffers, names, (), written)
            body(k, e, product)
    with e.block('extern "C" void KERNEL(void* const* P, const int64_t* S)'):
        launch(e, k, ())
    return e.text


def _emit_part(k: Kernel, e: Emitter, product: Dequantised) -> None:
    g, rows = geometry_of(k.comp, product), _rows(k.comp, product)
    columns, left = k.extent(product.column), k.pointers["terms"]
    with e.block(f"for (int64_t n = tid; n < {rows * g.chunks}; n += parts)"):
        e.line(f"spread(P, S, n / {g.chunks}, n % {g.chunks}, {left} + n * {g.step});")
    e.line("#pragma omp barrier")
    if rows <= FEW:
        e.line(f"tw_multiply_filled<{rows}, {g.step}>({left}, {g.chunks}, {columns}, tid, parts,")
        e.line(f"    {_FILL},")
        e.line(f"    {_AFTER});")
        return
    packed, sums = k.pointers["packed"], k.pointers.get("sums", "nullptr")
    block = block_of(k.comp.extent(product.column))
    e.line(f"const tw_product<float, float> a = {{{rows}, {columns}, {g.padded}, {left}, nullptr,")
    e.line(f"    {g.padded}, 1, 1, 1, {block}, {_stretch(g)}, {packed}, {sums}}};")
    e.line(f"tw_multiply(a, tid, parts, {_AFTER},")
    e.line("    [=](const tw_product<float, float>& a, int64_t column, int64_t columns,")
    e.line("        int64_t from, int64_t stretch, int64_t tid, int64_t parts) {")
    e.line(f"  tw_pack_filled<{g.step}>(a.packed, column, columns, from, stretch, tid, parts,")
    e.line(f"      {_FILL});")
    e.line("});")
