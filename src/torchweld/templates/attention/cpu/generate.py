"""The C++ of a score nest (nest.h has the loops of the products, schedule.py their order).

static void part(P, S, item, scratch)     one tile of rows of one point of the batch
extern "C" void NAME(P, S)                all of them, shared by the threads as they come
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.cpp.headers import with_headers
from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.ir import size
from torchweld.ir.nodes import Buffer, Value, needed, store_axes, store_operands, value_axes
from torchweld.templates.attention.cpu import factors, scratch
from torchweld.templates.attention.cpu.code import Code, coordinates, define_fixed
from torchweld.templates.attention.cpu.schedule import NestRoles, NestTiles, widths
from torchweld.templates.attention.cpu.scores import emit_scores
from torchweld.templates.attention.cpu.stages import Stages, stages_of
from torchweld.templates.pointwise_reduce.cpu import generate as cpp
from torchweld.templates.pointwise_reduce.cpu.kernel import kernel
from torchweld.templates.pointwise_reduce.cpu.schedule import CpuSchedule
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, store

_SCORE_WORK = 16  # multiply-adds for a score beside products: an exponential, a sum
_PART = "void* const* P, const int64_t* S, int64_t item, float* scratch"


Emit = Callable[[Code, Emitter], None]


@cache
def header() -> str:
    return Path(__file__).with_name("nest.h").read_text()


def generate(
    roles: NestRoles, tiles: NestTiles, buffers: Mapping[str, Buffer]
) -> KernelBundle:
    """The C++ of the Comp that is `roles`."""
    return generated(roles, tiles, buffers, _emit_walks)


def generated(
    roles: NestRoles, tiles: NestTiles, buffers: Mapping[str, Buffer], emit: Emit
) -> KernelBundle:
    """The same, where `emit` prints what is done with a tile of rows."""
    names = tuple(dict.fromkeys(a.buffer for a in roles.accesses.all))
    symbols = tuple(sorted(cpp.size_symbols(roles.accesses)))
    c = _code(roles, tiles, buffers, {n: f"p{i}" for i, n in enumerate(names)})
    text = _text(c, buffers, names, symbols, emit)
    name = "tw_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    args = (*map(BufferArg, names), *(SizeArg(size.symbol(s)) for s in symbols))
    sizes = f"#define TW_ROWS {tiles.group}\n#define TW_FEW {int(tiles.few)}\n"
    text = with_headers(text.replace("KERNEL", name), sizes, header())
    return KernelBundle(roles.comp.name, (KernelSource("cpp", name, text, args),))


def _code(roles: NestRoles, tiles: NestTiles, buffers, pointers) -> Code:
    k = kernel(roles.accesses, CpuSchedule((), (roles.key,), "column", "rows"), buffers, pointers)
    return Code(roles, tiles, k, tuple(stages_of(roles, w) for w in roles.nest.walks))


def _text(c: Code, buffers, names, symbols, emit: Emit) -> str:
    e, written = Emitter(), set(c.roles.comp.writes)
    e.lines(cpp.address_notes(c.roles.accesses))
    e.line(f"enum {{ ROWS = {c.tiles.rows}, PART = {c.tiles.part}, KEYS = {c.tiles.keys} }};")
    with e.block(f"static void part({_PART})"):
        cpp.declare(e, buffers, names, symbols, written)
        _emit_part(c, e)
        emit(c, e)
    with e.block('extern "C" void KERNEL(void* const* P, const int64_t* S)'):
        cpp.declare(e, buffers, names, symbols, written)
        _emit_entry(c, e)
    return e.text


def _emit_entry(c: Code, e: Emitter) -> None:
    nest = c.roles.nest
    e.line(f"const int64_t tiles = ({c.points(nest.rows)} + ROWS - 1) / ROWS;")
    e.line(f"const int64_t items = {c.points(nest.batch)} * tiles;")
    e.line(f"#pragma omp parallel if (items > 1 && {_work(c)} > {cpp.PARALLEL_WORK})")
    with e.block():
        e.line(f"char* const memory = (char*)malloc(({scratch.total(c)}) * sizeof(float) + 64);")
        e.line("float* const scratch = (float*)(((uintptr_t)memory + 63) & ~(uintptr_t)63);")
        e.line("#pragma omp for schedule(dynamic)")
        e.line("for (int64_t item = 0; item < items; ++item) part(P, S, item, scratch);")
        e.line("free(memory);")


def _work(c: Code) -> str:
    """Multiply-adds, if all scores count."""
    nest = c.roles.nest
    scores = " * ".join(c.points(a) for a in (nest.turns, nest.batch, nest.rows, nest.keys))
    each = " + ".join(x.size_text(w) for w in widths(c.roles))
    return f"(double){scores} * ({each} + {_SCORE_WORK})"


def _emit_part(c: Code, e: Emitter) -> None:
    nest = c.roles.nest
    e.line(f"const int64_t all = {c.points(nest.rows)}, tiles = (all + ROWS - 1) / ROWS;")
    e.line("const int64_t row0 = (tiles - 1 - item % tiles) * ROWS, point = item / tiles;")
    e.line("const int64_t rows = tw_least(ROWS, all - row0);")
    coordinates(c, e, nest.batch, "point")
    scratch.declare(c, e)


def _emit_walks(c: Code, e: Emitter) -> None:
    nest = c.roles.nest
    for number, inner in enumerate(nest.inners):
        factors.emit_rows(c, e, number, inner)
    bounds(c, e)
    for walk in c.walks:
        _emit_walk(c, e, walk)
    _emit_rest(c, e)


def bounds(c: Code, e: Emitter) -> None:
    """The keys that count for each part of the rows, and for all."""
    bound, extent = c.roles.nest.bound, c.k.extent(c.roles.key)
    low = x.affine_text(bound.low, c.k.names) if bound.low else "0"
    high = x.affine_text(bound.high, c.k.names) if bound.high else extent
    e.line("int64_t lows[ROWS / PART], highs[ROWS / PART];")
    e.line(f"int64_t low = {extent}, high = 0;")
    with e.block("for (int64_t part0 = 0; part0 < rows; part0 += PART)"):
        e.line(f"int64_t first = {extent}, last = 0;")
        with e.block("for (int64_t r = part0; r < tw_least(rows, part0 + PART); ++r)"):
            coordinates(c, e, c.roles.nest.rows, "(row0 + r)")
            e.line(f"first = tw_least(first, {low});")
            e.line(f"last = tw_most(last, {high});")
        e.line("lows[part0 / PART] = first = tw_most(first, 0);")
        e.line(f"highs[part0 / PART] = last = tw_least(last, {extent});")
        e.line("low = tw_least(low, first);")
        e.line("high = tw_most(high, last);")


def _emit_walk(c: Code, e: Emitter, walk: Stages) -> None:
    _emit_start(c, e, walk)
    loops = [f"for (int64_t {c.name(a)} = 0; {c.name(a)} < {c.k.extent(a)}; ++{c.name(a)})"
             for a in c.roles.over]  # fmt: skip
    loops.append("for (int64_t key0 = low; key0 < high; key0 += KEYS)")
    with e.block(" ".join(loops)):
        e.line("const int64_t count = tw_least(KEYS, high - key0);")
        for tile, inner in enumerate(walk.inners):
            factors.emit_across(c, e, c.roles.nest.inners.index(inner), inner, tile)
        for outer in walk.outers:
            e.line(f"tw_panels panels{c.roles.nest.outers.index(outer)};")
            factors.emit_along(c, e, c.roles.nest.outers.index(outer), outer)
        with e.block("for (int64_t part0 = 0; part0 < rows; part0 += PART)"):
            e.line("const int64_t some = tw_least(PART, rows - part0);")
            e.line("const int64_t seen = tw_least(count, highs[part0 / PART] - key0);")
            e.line("if (seen <= 0 || key0 + count <= lows[part0 / PART]) continue;")
            _emit_tile(c, e, walk)


def _emit_start(c: Code, e: Emitter, walk: Stages) -> None:
    """Statistics and sums of nothing."""
    for value in walk.statistics:
        start = "-TW_INF" if c.body[value].monoid == "max" else "0"
        e.line(f"for (int64_t r = 0; r < rows; ++r) st{value}[r] = {start};")
    for outer in walk.outers:
        number = c.roles.nest.outers.index(outer)
        e.line(f"__builtin_memset(o{number}, 0, ROWS * width{number} * sizeof(float));")


def _emit_tile(c: Code, e: Emitter, walk: Stages) -> None:
    nest, shifts = c.roles.nest, dict(walk.walk.rescaled)
    multiply_keys(c, e, walk)
    emit_scores(c, e, walk)
    tiles = scratch.weights(walk)
    for outer in walk.outers:
        number = nest.outers.index(outer)
        scale = f"by{shifts[outer.value]}" if outer.value in shifts else "ones"
        wide, at = c.points(outer.columns), f"width{number}"
        e.line(f"tw_multiply<true>(some, {wide}, seen, s{tiles[outer.weight]}, KEYS, "
               f"panels{number}, o{number} + part0 * {at}, {at}, {scale});")


def multiply_keys(c: Code, e: Emitter, walk: Stages) -> None:
    """The products that scores are made of, of a part of the rows and a tile of keys."""
    for tile, inner in enumerate(walk.inners):
        if factors.in_place(c, inner):
            continue
        number, deep = c.roles.nest.inners.index(inner), c.points(inner.depth)
        e.line(f"tw_multiply<false>(some, seen, {deep}, a{number} + part0 * {deep}, {deep}, "
               f"{{b{number}, count, {deep}, 0}}, s{tile}, KEYS, nullptr);")  # fmt: skip


def _emit_rest(c: Code, e: Emitter) -> None:
    """What follows the sums, and the stores: once a row, and along the columns of a row."""
    comp, axes = c.roles.comp, value_axes(c.body)
    rows = frozenset(c.roles.nest.batch) | frozenset(c.roles.nest.rows)
    with e.block("for (int64_t r = 0; r < rows; ++r)"):
        coordinates(c, e, c.roles.nest.rows, "(row0 + r)")
        texts: Texts = {v: f"st{v}[r]" for v in c.roles.nest.statistics}
        for columns in dict.fromkeys([*(o.columns for o in c.roles.nest.outers), ()]):
            mine = [
                n for n, item in enumerate(comp.stores)
                if store_axes(comp, item, axes) - rows == frozenset(columns)
            ]  # fmt: skip
            if mine:
                _emit_columns(c, e, columns, mine, texts)


def _emit_columns(c: Code, e: Emitter, columns, stores: list[int], texts: Texts) -> None:
    comp, along = c.roles.comp, frozenset(columns)
    roots = [v for n in stores for v in store_operands(comp.stores[n])]
    define_fixed(c, e, _without_sums(c, roots), texts, along)
    position = c.name(columns[0]) if columns else "column"
    e.line("#pragma omp simd")
    with e.block(f"for (int64_t {position} = 0; {position} < {c.points(columns)}; ++{position})"):
        inside = dict(texts)
        for number, outer in enumerate(c.roles.nest.outers):
            if outer.columns == columns:
                inside[outer.value] = f"o{number}[r * width{number} + {position}]"
        for value in sorted(needed(c.body, roots, stop=inside)):
            if value not in inside:
                define(c.k, e, value, inside)
        for number in stores:
            store(c.k, e, number, inside)


def _without_sums(c: Code, roots: list[Value]) -> list[Value]:
    """What `roots` are made of that no product is part of."""
    outers = {o.value for o in c.roles.nest.outers}
    behind = needed(c.body, roots, stop=c.finished)
    return [v for v in behind if not outers & needed(c.body, [v], stop=c.finished)]
