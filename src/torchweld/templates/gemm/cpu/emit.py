"""Products of matrices in C++: the loops of product.h, and what follows the sums of each block.

    static void finish(P, S, batch, row0, rows, column0, columns, c)
    static void multiply(P, S, batch, tid, parts, crew)      tw_multiply(..., finish)
    static void part(P, S, tid, parts, shared)               multiply for each batch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir import size
from torchweld.ir.access import Access, Accesses
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Value, needed
from torchweld.ir.size import Size
from torchweld.targets.cpu import core_cache_bytes
from torchweld.templates.gemm.cpu.schedule import CpuProduct, scratch_elements
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel, kernel
from torchweld.templates.pointwise_reduce.cpu.schedule import CpuSchedule
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, emit_lane

_BATCH = "batch"
_ELEMENTS = {dtypes.f32: "float", dtypes.f16: "tw_f16", dtypes.bf16: "tw_bf16"}


@cache
def header() -> str:
    cache = f"#define TW_CACHE {core_cache_bytes()}\n"
    return cache + Path(__file__).with_name("product.h").read_text()


def scratch_buffers(product: CpuProduct, accesses: Accesses, device: str) -> tuple[Buffer, ...]:
    sizes = scratch_elements(product, accesses)
    return tuple(Buffer(name, (n,), dtypes.f32, (1,), device) for name, n in sizes.items())


def with_symbols(accesses: Accesses, least: int = 2) -> tuple[Accesses, dict[str, Size]]:
    """`accesses` with a symbol in the place of each stride and offset from `least` on, and what
    they are."""
    numbers: dict[str, Size] = {}

    def named(number: Size) -> Size:
        if isinstance(number, int) and 0 <= number < least:
            return number
        numbers[f"s{len(numbers)}"] = number
        return size.symbol(f"s{len(numbers) - 1}")

    def changed(access: Access) -> Access:
        terms = tuple((axis, named(c)) for axis, c in access.offset.terms)
        return replace(access, offset=Affine(terms, named(access.offset.const)))

    loads = {v: changed(a) for v, a in accesses.loads.items()}
    return replace(accesses, loads=loads, stores=tuple(map(changed, accesses.stores))), numbers


def product_kernel(
    accesses: Accesses, product: CpuProduct, buffers: Mapping[str, Buffer], pointers
) -> Kernel:
    """What the statements after the sums are written with."""
    loop = CpuSchedule((), (product.lane,), "column", "rows")
    return kernel(accesses, loop, buffers, pointers)


def emit_finish(k: Kernel, e: Emitter, product: CpuProduct) -> None:
    """The body of `finish`."""
    if product.batch:
        e.line(f"const int64_t {k.names[product.batch]} = {_BATCH};")
    if product.lane == product.column:
        _along_columns(k, e, product)
    else:
        _along_rows(k, e, product)


def emit_product(k: Kernel, e: Emitter, product: CpuProduct) -> None:
    """The body of `multiply`: one product of the batch, made by `parts` threads together."""
    axes = (product.row, product.column, product.depth)
    extents = ", ".join(k.extent(a) if a else "1" for a in axes)
    left, right = (k.accesses.loads[v] for v in (product.left, product.right))
    starts = f"{_start(k, left, product)}, {_start(k, right, product)}"
    steps = [(left, product.row), (left, product.depth)]
    steps += [(right, product.column), (right, product.depth)]
    strides = ", ".join(x.size_text(a.offset.coefficient(axis)) for a, axis in steps)
    memory = ", ".join(_memory(k, product, name) for name in ("packed", "sums"))
    kinds = ", ".join(_ELEMENTS[k.kinds[a.buffer]] for a in (left, right))
    blocks = ", ".join(map(x.size_text, (product.block, product.stretch)))
    e.line(f"const tw_product<{kinds}> a = {{{extents}, {starts}, {strides},")
    e.line(f"                      {blocks}, {memory}}};")
    e.line(f"{_loops(k, product)}(a, tid, parts, [=](int64_t row, int64_t rows, int64_t column,")
    e.line("    int64_t columns, const float* c, int64_t c_row) {")
    e.line(f"  finish(P, S, {_BATCH}, row, rows, column, columns, c, c_row);")
    e.line("});")


def emit_batch(k: Kernel, e: Emitter, product: CpuProduct) -> None:
    """The body of `part`: as many products as all threads can take an equal number of are made by
    one thread each, which waits for nobody; the others by all threads."""
    if not product.batch:
        e.line("multiply(P, S, 0, tid, parts, 0);")
        return
    e.line(f"const int64_t count = {k.extent(product.batch)};")
    apart = "true" if product.few else f"parts <= {product.crews}"
    e.line(f"const int64_t each = {apart} ? count / parts : 0;")
    with e.block("for (int64_t n = each * tid; n < each * (tid + 1); ++n)"):
        e.line("multiply(P, S, n, 0, 1, tid);")
    if not product.few:
        e.line("if (each > 0 && each * parts < count) tw_meet(parts);  // memory of the first crew")
    with e.block("for (int64_t n = each * parts; n < count; ++n)"):
        e.line("multiply(P, S, n, tid, parts, 0);")


def _memory(k: Kernel, product: CpuProduct, name: str) -> str:
    """Where a crew's part of a scratch buffer begins."""
    if name not in k.pointers:
        return "nullptr"
    if product.crews == 1:
        return k.pointers[name]
    elements = scratch_elements(replace(product, crews=1), k.accesses)[name]
    return f"{k.pointers[name]} + crew * {x.size_text(elements)}"


def _loops(k: Kernel, product: CpuProduct) -> str:
    if not product.few:
        return "tw_multiply"
    rows = k.comp.extent(product.row) if product.row else 1
    return f"tw_multiply_few<{max(1, rows)}, {_layout(k, product)}>"


def _layout(k: Kernel, product: CpuProduct) -> str:
    """How the factors of few rows lie, in the words of product.h."""
    factors = (k.accesses.loads[v].offset for v in (product.left, product.right))
    left, right = (offset.coefficient(product.depth) == 1 for offset in factors)
    return "TW_BY_STEPS" if not right else "TW_BY_DOTS" if left else "TW_BY_GATHER"


def _start(k: Kernel, access: Access, product: CpuProduct) -> str:
    offset = x.size_text(access.offset.const)
    if product.batch:
        offset += f" + {x.size_text(access.offset.coefficient(product.batch))} * {_BATCH}"
    return f"(const {_ELEMENTS[k.kinds[access.buffer]]}*){k.pointers[access.buffer]} + {offset}"


def _along_columns(k: Kernel, e: Emitter, product: CpuProduct) -> None:
    column = k.names[product.column]
    loop = (column, "column0", "column0 + columns")
    if product.row is None:
        return _lane(k, e, product, loop, f"c[{column} - column0]")
    row = k.names[product.row]
    with e.block(f"for (int64_t {row} = row0; {row} < row0 + rows; ++{row})"):
        _lane(k, e, product, loop, f"c[({row} - row0) * c_row + {column} - column0]")
    return None


def _along_rows(k: Kernel, e: Emitter, product: CpuProduct) -> None:
    """The sums of a few columns are turned first."""
    row, column = k.names[product.row], k.names[product.column]
    with e.block("for (int64_t low = 0; low < columns; low += TW_WIDTH)"):
        e.line("const int64_t high = low + TW_WIDTH < columns ? low + TW_WIDTH : columns;")
        e.line("alignas(64) float turned[TW_WIDTH][TW_CHUNK];")
        with e.block("for (int64_t i = 0; i < rows; i += TW_WIDTH)"):
            e.line("tw_turn(c + i * c_row + low, c_row, &turned[0][i], TW_CHUNK);")
        with e.block(
            f"for (int64_t {column} = column0 + low; {column} < column0 + high; ++{column})"
        ):
            sums = f"turned[{column} - column0 - low][{row} - row0]"
            _lane(k, e, product, (row, "row0", "row0 + rows"), sums)


def _lane(k: Kernel, e: Emitter, product: CpuProduct, loop: tuple[str, ...], sums: str) -> None:
    """One vectorised loop (variable, first, end): the sums, and all that follows them."""
    texts: Texts = {}
    values = _following(k, product)
    fixed = [v for v in values if product.lane not in k.stages.axes[v]]
    for value in fixed:
        define(k, e, value, texts)
    name, low, high = loop
    header = f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"
    emit_lane(k, e, header, (product.value, sums), values, texts)


def _following(k: Kernel, product: CpuProduct) -> list[Value]:
    gone = needed(k.body, (product.value,))
    return [v for v in range(len(k.body)) if v not in gone]
