"""The functions of a product with a dequantised factor, in C++ (dequantised.h has the loops).

    static void fill(P, S, column, chunk, to)      terms of the computed factor
    static void spread(P, S, row, chunk, to)       the other factor's, in the same order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product as combinations

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.ir.nodes import Value, needed
from torchweld.templates.gemm.dequantised.schedule import (
    Codes,
    Dequantised,
    Geometry,
    geometry_of,
    varying,
)
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, element

_AHEAD = 4096  # bytes: of a packed weight, fetched into L2 before they are needed


def emit_spread(k: Kernel, e: Emitter, product: Dequantised) -> None:
    """The body of `spread`."""
    load = k.accesses.loads[product.left]
    if product.row:
        e.line(f"const int64_t {k.names[product.row]} = row;")

    def piece(count: str) -> None:
        run = k.names[product.run]
        for nth, phase in _phases(k, product):
            with e.block(), _loop(e, run, count, phase):
                text = x.widened(element(k, load, {}), k.kinds[load.buffer])
                e.line(f"to[at + {nth} * {count} + p] = {text};")
        if product.codes:
            phases = geometry_of(k.comp, product).phases
            e.line(f"tw_in_code_order(to + at, {count} * {phases});")

    _pieces(k, e, product, piece)


def emit_fill(k: Kernel, e: Emitter, product: Dequantised) -> None:
    """The body of `fill`."""
    e.line(f"const int64_t {k.names[product.column]} = column;")
    inner = varying(k.comp, product)
    fixed = sorted(needed(k.body, (product.right,)) - set(inner))

    def piece(count: str) -> None:
        texts: Texts = {}
        for value in fixed:
            define(k, e, value, texts)
        if product.codes:
            _looked_up(k, e, product, inner, product.codes, count, texts)
        else:
            _terms(k, e, product, inner, count, texts, ("to + at", f"v{product.right}"))

    _pieces(k, e, product, piece, ahead=True)


def _pieces(
    k: Kernel, e: Emitter, product: Dequantised, piece: Callable[[str], None], ahead: bool = False
) -> None:
    """`piece`, given how many positions it has, for all pieces of a chunk; then zeros."""
    g = geometry_of(k.comp, product)
    e.line("int64_t at = 0;")
    first, end = f"chunk * {g.together}", g.points * g.pieces
    last = f"{first} + {g.together} < {end} ? {first} + {g.together} : {end}"
    with e.block(f"for (int64_t r = {first}, end = {last}; r < end; ++r)"):
        _point(k, e, product, g)
        if ahead:
            _prefetch(k, e, product, g)
        if g.length % g.piece:
            e.line(f"const int64_t rest = {g.length} - low;")
            e.line(f"const int64_t count = rest < {g.piece} ? rest : {g.piece};")
            with e.block(f"if (count == {g.piece})"):
                piece(str(g.piece))
            with e.block("else"):
                piece("count")
            e.line(f"at += count * {g.phases};")
        else:
            piece(str(g.piece))
            e.line(f"at += {g.piece * g.phases};")
    e.line(f"for (; at < {g.step}; ++at) to[at] = 0;")


def _point(k: Kernel, e: Emitter, product: Dequantised, g: Geometry) -> None:
    """Where piece `r` is: the outer axes, and the first position in the run."""
    e.line(f"const int64_t low = r % {g.pieces} * {g.piece};")
    e.line(f"int64_t point = r / {g.pieces};")
    for axis in reversed(product.outer):
        e.line(f"const int64_t {k.names[axis]} = point % {k.extent(axis)};")
        e.line(f"point /= {k.extent(axis)};")


def _prefetch(k: Kernel, e: Emitter, product: Dequantised, g: Geometry) -> None:
    access = k.accesses.loads[product.packed]
    with e.block():
        e.line(f"const int64_t {k.names[product.run]} = low;")
        e.line(f"const char* next = (const char*)&{element(k, access, {})} + {_AHEAD};")
        lines = f"for (int64_t b = 0; b < {g.piece * access.bytes}; b += 64)"
        e.line(f"{lines} __builtin_prefetch(next + b, 0, 2);")


def _phases(k: Kernel, product: Dequantised) -> Iterator[tuple[int, list[str]]]:
    """The number of each phase, and the lines that say what its axes are."""
    ranges = [range(k.comp.extent(a)) for a in product.phases]
    for nth, point in enumerate(combinations(*ranges)):
        names = [k.names[a] for a in product.phases]
        yield nth, [f"const int64_t {n} = {at};" for n, at in zip(names, point)]


@contextmanager
def _loop(e: Emitter, run: str, count: str, first: Sequence[str] = ()) -> Iterator[None]:
    """A vectorised loop along a piece."""
    e.lines(first)
    e.line("#pragma omp simd")
    with e.block(f"for (int64_t p = 0; p < {count}; ++p)"):
        e.line(f"const int64_t {run} = low + p;")
        yield


def _terms(
    k: Kernel, e: Emitter, product: Dequantised, values: Sequence[Value], count: str,
    fixed: Texts, store: tuple[str, str],
) -> None:  # fmt: skip
    """`values` at each position and phase, and the last of them stored: (to, value)."""
    phases, axes = set(product.phases), k.stages.axes
    with _loop(e, k.names[product.run], count):
        texts = dict(fixed)
        for value in (v for v in values if not axes[v] & phases):
            define(k, e, value, texts)
        for nth, lines in _phases(k, product):
            with e.block():
                e.lines(lines)
                inside = dict(texts)
                for value in (v for v in values if axes[v] & phases):
                    define(k, e, value, inside)
                e.line(f"({store[0]})[{nth} * {count} + p] = {store[1]};")


def _looked_up(
    k: Kernel, e: Emitter, product: Dequantised, inner: Sequence[Value], codes: Codes, count: str,
    fixed: Texts,
) -> None:  # fmt: skip
    """A table of what each code becomes, then the codes, then the terms."""
    name = f"v{codes.value}"
    made_of = needed(k.body, (codes.value,))
    after = needed(k.body, (product.right,), stop=(codes.value,)) - {codes.value}
    g = geometry_of(k.comp, product)
    e.line("alignas(64) float table[16] = {};")
    e.line("#pragma omp simd")
    with e.block(f"for (int t = 0; t < {codes.count}; ++t)"):
        e.line(f"const int {name} = t + {codes.low};")  # 32 bits: as many lanes as floats
        texts = {**fixed, codes.value: name}
        for value in (v for v in inner if v in after):
            define(k, e, value, texts)
        e.line(f"table[t] = {texts[product.right]};")
    e.line(f"alignas(64) uint8_t codes[{g.piece * g.phases}];")
    code = f"(uint8_t)({name} - {codes.low})"
    _terms(k, e, product, [v for v in inner if v in made_of], count, fixed, ("codes", code))
    e.line(f"tw_look_up(table, codes, {count} * {g.phases}, to + at);")
