"""Sums of scores over a batch in C++ (templates/attention/sums.py has the form).

    for batch, for tiles of rows                        shared by the threads
      for tiles of keys
        for turns: pack both factors; for parts of the rows: scores, added to the tile's sums
        what follows the sums
"""

from __future__ import annotations

from torchweld.codegen.emitter import Emitter
from torchweld.codegen.source import KernelBundle
from torchweld.ir.access import unmerged
from torchweld.ir.nodes import needed, store_operands
from torchweld.templates.attention.cpu import factors, template
from torchweld.templates.attention.cpu.code import Code, coordinates, define_fixed
from torchweld.templates.attention.cpu.generate import bounds, generated, multiply_keys
from torchweld.templates.attention.cpu.schedule import NestRoles, NestTiles
from torchweld.templates.attention.cpu.scores import emit_scores, slot_of
from torchweld.templates.attention.sums import sums_of
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, store
from torchweld.templates.template import Problem, Template, no_reference


def match(problem: Problem) -> NestRoles | None:
    nest = sums_of(problem.comp)
    accesses = nest and unmerged(problem.comp, problem.buffers)
    return accesses and NestRoles(nest, accesses, nest.keys[0], ())


def generate(roles: NestRoles, tiles: NestTiles, problem: Problem) -> KernelBundle:
    return generated(roles, tiles, problem.buffers, _emit_part)


TEMPLATE = Template(
    "attention/cpu/sums", match, template.supports, template.candidates, template.price, generate,
    no_reference,
)  # fmt: skip


def _emit_part(c: Code, e: Emitter) -> None:
    """One tile of rows of one point of the batch."""
    bounds(c, e)
    extent = c.k.extent(c.roles.key)
    with e.block(f"for (int64_t key0 = 0; key0 < {extent}; key0 += KEYS)"):
        e.line(f"const int64_t count = tw_least(KEYS, {extent} - key0);")
        e.line("__builtin_memset(total, 0, ROWS * KEYS * sizeof(float));")
        e.line("if (key0 < high && key0 + count > low)")
        loops = [f"for (int64_t {c.name(a)} = 0; {c.name(a)} < {c.k.extent(a)}; ++{c.name(a)})"
                 for a in c.roles.nest.turns]  # fmt: skip
        with e.block(" ".join(loops)):
            _emit_turn(c, e)
        _emit_rest(c, e)


def _emit_turn(c: Code, e: Emitter) -> None:
    (walk,) = c.walks
    for number, inner in enumerate(c.roles.nest.inners):
        factors.emit_rows(c, e, number, inner)
        factors.emit_across(c, e, number, inner, number)
    with e.block("for (int64_t part0 = 0; part0 < rows; part0 += PART)"):
        e.line("const int64_t some = tw_least(PART, rows - part0);")
        e.line("const int64_t seen = tw_least(count, highs[part0 / PART] - key0);")
        e.line("if (seen <= 0 || key0 + count <= lows[part0 / PART]) continue;")
        multiply_keys(c, e, walk)
        emit_scores(c, e, walk, _add)


def _add(c: Code, e: Emitter, walk, value, tiles, texts: Texts) -> None:
    slot = slot_of(c.body[value].args[0], tiles)
    e.line(f"for (int64_t n = 0; n < seen; ++n) total[r * KEYS + n] += {slot}[n];")


def _emit_rest(c: Code, e: Emitter) -> None:
    """What follows the sums, and the stores, along the keys of a row."""
    (total,), comp = c.roles.nest.statistics, c.roles.comp
    roots = [v for s in comp.stores for v in store_operands(s)]
    with e.block("for (int64_t r = 0; r < rows; ++r)"):
        coordinates(c, e, c.roles.nest.rows, "(row0 + r)")
        texts: Texts = {}
        define_fixed(c, e, roots, texts, c.keys)
        e.line("#pragma omp simd")
        with e.block("for (int64_t n = 0; n < count; ++n)"):
            e.line(f"const int64_t {c.key} = key0 + n;")
            inside = {**texts, total: "total[r * KEYS + n]"}
            for value in sorted(needed(c.body, roots, stop=inside)):
                if value not in inside:
                    define(c.k, e, value, inside)
            for number in range(len(comp.stores)):
                store(c.k, e, number, inside)
