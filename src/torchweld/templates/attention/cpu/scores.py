"""What follows the scores of a tile, row by row: loops over its keys, statistics, weights."""

from __future__ import annotations

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Const, Index, Op, Value
from torchweld.templates.attention.cpu.code import Code, coordinates, define_fixed
from torchweld.templates.attention.cpu.stages import Stages
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def emit_scores(c: Code, e: Emitter, walk: Stages, take=None) -> None:
    """For the rows part0 to part0 + some - 1 of a tile. `take`: what is done with the scores that
    are reduced; a statistic of a row if it is not said."""
    tiles = tiles_of_weights(walk)
    with e.block("for (int64_t r = part0; r < part0 + some; ++r)"):
        coordinates(c, e, c.roles.nest.rows, "(row0 + r)")
        texts = {v: f"st{v}[r]" for v in _known(c, walk)}
        for value in sorted(walk.kept | set(_arrays(walk, tiles))):
            e.line(f"alignas(64) float t{value}[{c.tiles.keys}];")
        for stage in range(len(walk.loops)):
            _emit_stage(c, e, walk, stage, tiles, texts, take or _emit_statistic)


def tiles_of_weights(walk: Stages) -> dict[Value, int]:
    """Where weights are written: over the scores of a product that no later stage reads, else in a
    tile of their own."""
    free = [n for n, i in enumerate(walk.inners)]
    found: dict[Value, int] = {}
    own = len(walk.inners)
    for weight in walk.weights:
        fitting = [n for n in free if _last_use(walk, n) <= walk.homes[weight]]
        found[weight] = fitting[0] if fitting else own
        own += not fitting
        free = [n for n in free if n != found[weight]]
    return found


def _last_use(walk: Stages, number: int) -> int:
    value = walk.inners[number].value
    return max((s for s, loop in enumerate(walk.loops) if value in loop), default=0)


def _arrays(walk: Stages, tiles: dict[Value, int]) -> list[Value]:
    """Arguments of statistics that no tile has."""
    return [r for roots in walk.roots for r in roots if r not in tiles]


def _known(c: Code, walk: Stages) -> list[Value]:
    """Statistics of earlier walks."""
    earlier = c.walks[: c.walks.index(walk)]
    return [v for w in earlier for v in w.statistics]


def _emit_stage(
    c: Code, e: Emitter, walk: Stages, stage: int, tiles, texts: Texts, take
) -> None:
    roots = walk.roots[stage]
    define_fixed(c, e, roots, texts, c.keys)
    _near_conditions(c, e, walk.loops[stage], texts)
    _emit_loop(c, e, walk, stage, tiles, texts)
    for value in walk.statistics:
        if c.body[value].args[0] in roots:
            take(c, e, walk, value, tiles, texts)


def _emit_loop(c: Code, e: Emitter, walk: Stages, stage: int, tiles, texts: Texts) -> None:
    """Everything along the keys; arrays are written at the end, where all is read."""
    inside, loop = dict(texts), walk.loops[stage]
    numbers = {i.value: n for n, i in enumerate(walk.inners)}
    before = {v for s in range(stage) for v in walk.loops[s]}
    e.line("#pragma omp simd")
    with e.block("for (int32_t n = 0; n < (int32_t)seen; ++n)"):
        e.line(f"const int64_t {c.key} = key0 + n;")
        for value in loop:
            if value in numbers:
                e.line(f"const float v{value} = s{numbers[value]}[(r - part0) * KEYS + n];")
                inside[value] = f"v{value}"
            elif value in before and value in walk.kept:
                e.line(f"const float v{value} = {slot_of(value, tiles)}[n];")
                inside[value] = f"v{value}"
            elif value not in inside:
                define(c.k, e, value, inside)
        kept = [v for v in loop if v in walk.kept and v not in before]
        for value in dict.fromkeys((*walk.roots[stage], *kept)):
            e.line(f"{slot_of(value, tiles)}[n] = {inside[value]};")


def slot_of(value: Value, tiles: dict[Value, int]) -> str:
    """Where a row's values along the keys are kept."""
    return f"(s{tiles[value]} + (r - part0) * KEYS)" if value in tiles else f"t{value}"


def _emit_statistic(c: Code, e: Emitter, walk: Stages, value: Value, tiles, texts: Texts) -> None:
    instr, shifts = c.body[value], dict(walk.walk.rescaled)
    slot = slot_of(instr.args[0], tiles)
    if instr.monoid == "max":
        e.line(f"const float m{value} = tw_largest({slot}, seen, st{value}[r]);")
        if value in shifts.values():
            e.line(f"by{value}[r - part0] = tw_moved(st{value}[r], m{value});")
        e.line(f"st{value}[r] = m{value};")
        texts[value] = f"m{value}"
        return
    scaled = f" * by{shifts[value]}[r - part0]" if value in shifts else ""
    e.line(f"st{value}[r] = st{value}[r]{scaled} + tw_sum({slot}, seen);")


# -- comparisons of positions, in 32 bits relative to the tile --


def _near_conditions(c: Code, e: Emitter, loop: tuple[Value, ...], texts: Texts) -> None:
    """position <= limit  ->  n <= limit - key0, for comparisons of affine maps."""
    for value in loop:
        difference = None if value in texts else _difference(c, value)
        step = difference.coefficient(c.roles.key) if difference else 0
        if step not in (1, -1):
            continue
        rest = difference + affine.axis(c.roles.key) * -step
        text = x.affine_text(rest * -step, c.k.names)
        e.line(f"const int32_t limit{value} = tw_near({text} - key0);")
        sign = _SIGNS[c.body[value].name]
        sides = ("n", f"limit{value}") if step == 1 else (f"limit{value}", "n")
        texts[value] = f"({sides[0]} {sign} {sides[1]})"


def _difference(c: Code, value: Value) -> Affine | None:
    """a - b of a comparison of two maps."""
    instr = c.body[value]
    if not isinstance(instr, Op) or instr.name not in _SIGNS:
        return None
    maps = [_map(c, v) for v in instr.args]
    return None if None in maps else maps[0] + maps[1] * -1


def _map(c: Code, value: Value) -> Affine | None:
    instr = c.body[value]
    if isinstance(instr, Index):
        return instr.map
    number = isinstance(instr, Const) and instr.dtype == dtypes.i64
    return affine.constant(int(instr.value)) if number else None
