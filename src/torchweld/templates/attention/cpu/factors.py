"""Factors of the products, copied to where the loops of nest.h read them, in float32."""

from __future__ import annotations

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir.access import Access
from torchweld.ir.nodes import Load, Value, needed
from torchweld.templates.attention.cpu.code import ELEMENTS, Code, coordinates, define_fixed
from torchweld.templates.attention.nest import Inner, Outer
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define

_WIDEST = 16  # floats of a vector


def emit_rows(c: Code, e: Emitter, number: int, inner: Inner) -> None:
    """The rows' factor of a product, rows of `depth` elements, zeros up to a whole group."""
    (depth,) = inner.depth
    deep = c.k.extent(depth)
    with e.block("for (int64_t r = 0; r < rows; ++r)"):
        coordinates(c, e, c.roles.nest.rows, "(row0 + r)")
        e.line(f"float* const to = a{number} + r * {deep};")
        _emit_line(c, e, inner.row, depth, "to")
        with e.block("if (line != to)"):
            e.line(f"__builtin_memcpy(to, line, {deep} * sizeof(float));")
    group = c.tiles.group
    e.line(f"__builtin_memset(a{number} + rows * {deep}, 0, "
           f"(tw_whole(rows, {group}) - rows) * {deep} * sizeof(float));")  # fmt: skip


def emit_across(c: Code, e: Emitter, number: int, inner: Inner, tile: int) -> None:
    """The keys' factor of a product of scores; with few rows, the product itself."""
    (depth,) = inner.depth
    deep = c.k.extent(depth)
    if _lies_along_keys(c, inner.key):
        return _emit_columns(c, e, number, inner, depth)
    to = f"a{number}, s{tile}, KEYS" if in_place(c, inner) else f"b{number}"
    loops = "tw_dots" if in_place(c, inner) else "tw_pack_across"
    e.line(f"{loops}(count, {deep}, {to}, [&](int64_t n, int64_t slot) {{")
    e.line(f"  const int64_t {c.key} = key0 + n;")
    e.line(f"  float* const to = lines + slot * {deep};")
    _emit_line(c, e, inner.key, depth, "to")
    e.line("  return line;")
    e.line("});")
    return None


def in_place(c: Code, inner: Inner) -> bool:
    """Whether scores are made of keys that are not packed."""
    return c.tiles.few and not _lies_along_keys(c, inner.key)


def emit_along(c: Code, e: Emitter, number: int, outer: Outer) -> None:
    """`panels`: the keys' factor of a product with weights."""
    wide = c.points(outer.columns)
    if row := _row_in_place(c, outer):
        access = c.k.accesses.loads[outer.key]
        with e.block():
            e.line(f"const int64_t {c.key} = key0, {c.name(outer.columns[0])} = 0;")
            e.line(f"panels{number} = {{{_start(c, access)}, {wide}, count, {row}}};")
        return
    columns = outer.columns[0] if outer.columns else None
    e.line(f"panels{number} = {{d{number}, {wide}, count, 0}};")
    e.line(f"tw_pack_along(count, {wide}, d{number}, [&](int64_t n, int64_t) {{")
    e.line(f"  const int64_t {c.key} = key0 + n;")
    e.line("  float* const to = lines;")
    _emit_line(c, e, outer.key, columns, "to")
    e.line("  return line;")
    e.line("});")


def _row_in_place(c: Code, outer: Outer) -> str:
    """How far apart keys are whose values are used as they lie in memory: whole vectors of adjacent
    floats; empty if they are not."""
    if not c.tiles.few or not outer.columns or not _is_plain(c, outer.key):
        return ""
    (column,), offset = outer.columns, c.k.accesses.loads[outer.key].offset
    wide, step = c.roles.comp.extent(column), offset.coefficient(c.roles.key)
    whole = isinstance(wide, int) and wide % _WIDEST == 0 and step != 0
    floats = c.body[outer.key].dtype == dtypes.f32
    return x.size_text(step) if whole and floats and offset.coefficient(column) == 1 else ""


def _emit_columns(c: Code, e: Emitter, number: int, inner: Inner, depth: str) -> None:
    """Where neighbouring keys are neighbours in memory, a line is of keys at one depth."""
    e.line(f"tw_pack_columns(count, {c.k.extent(depth)}, b{number}, [&](int64_t n, int64_t) {{")
    e.line(f"  const int64_t {c.k.names[depth]} = n, {c.key} = key0;")
    access = c.k.accesses.loads[inner.key]
    e.line(f"  return tw_line({_start(c, access)}, 1, count, lines);")
    e.line("});")


def _emit_line(c: Code, e: Emitter, value: Value, axis: str | None, to: str) -> None:
    """`line`: a value along `axis`, as adjacent floats; at `to` unless it lies in memory so."""
    if axis is not None and _is_plain(c, value):
        access = c.k.accesses.loads[value]
        step, extent = x.size_text(access.offset.coefficient(axis)), c.k.extent(axis)
        e.line(f"const int64_t {c.k.names[axis]} = 0;")
        e.line(f"const float* const line = tw_line({_start(c, access)}, {step}, {extent}, {to});")
        return
    texts: Texts = {}
    along = frozenset({axis} - {None})
    define_fixed(c, e, (value,), texts, along)
    position = c.k.names[axis] if axis else "at"
    e.line("#pragma omp simd")
    with e.block(f"for (int64_t {position} = 0; {position} < {c.points(tuple(along))}; "
                 f"++{position})"):  # fmt: skip
        inside = dict(texts)
        for v in sorted(needed(c.body, (value,), stop=texts)):
            if v not in inside:
                define(c.k, e, v, inside)
        e.line(f"{to}[{position}] = {x.widened(inside[value], c.body[value].dtype)};")
    e.line(f"const float* const line = {to};")


def _start(c: Code, access: Access) -> str:
    kind = ELEMENTS[c.k.kinds[access.buffer]]
    offset = x.affine_text(access.offset, c.k.names)
    return f"(const {kind}*){c.k.pointers[access.buffer]} + {offset}"


def _is_plain(c: Code, value: Value) -> bool:
    """An unguarded load at an affine place."""
    instr = c.body[value]
    plain = isinstance(instr, Load) and instr.guard is None and instr.dtype in ELEMENTS
    return plain and not c.k.accesses.loads[value].refs


def _lies_along_keys(c: Code, value: Value) -> bool:
    return _is_plain(c, value) and c.k.accesses.loads[value].offset.coefficient(c.roles.key) == 1
