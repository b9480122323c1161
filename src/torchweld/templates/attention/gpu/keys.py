"""Which blocks of keys a program walks over: those that the mask's bound leaves, as three loops.

    first .. inner        blocks that the lower bound cuts
    inner .. outer        whole blocks: no mask, no condition that the bound is made from
    outer .. last         blocks that the upper bound or the end of the keys cuts
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.ir.affine import Affine
from torchweld.ir.size import Size
from torchweld.templates.attention.gpu.tiles import Face, Tiles
from torchweld.templates.pointwise_reduce.gpu.walks import rounded


@dataclass(frozen=True, slots=True)
class Part:
    """A loop over the blocks from `first` to `last`, two texts; `covered`: keys in them, None if
    some may be out of bounds; `face`: that of its scores."""

    first: str
    last: str
    covered: Size | None
    face: Face
    stages: int


def parts(t: Tiles) -> list[Part]:
    """The loops of one walk; what they begin and end with has been written."""
    k, s, bound = t.score, t.schedule, t.nest.bound
    every = rounded(t.keys, s.block_keys)
    cut = min(s.cut_stages, s.stages)
    if bound.low is None and bound.high is None and s.splits == 1:
        return _unbounded(t, every)
    _limits(t)
    if s.splits > 1:
        return [Part("first", "last", every, k, s.stages)]
    found = [Part("inner", "outer", t.keys, t.whole, s.stages)]
    if bound.low is not None:
        found = [Part("first", "inner", every, k, cut), *found]
    ends = bound.high is not None or every != t.keys
    return [*found, Part("outer", "last", every, k, cut)] if ends else found


def _unbounded(t: Tiles, every: Size | None) -> list[Part]:
    block, stages = t.schedule.block_keys, t.schedule.stages
    whole, blocks = _blocks(t)
    if every == t.keys or (isinstance(t.keys, int) and t.keys < 2 * block):
        return [Part("0", blocks, every, t.score, stages)]
    cut = min(t.schedule.cut_stages, stages)
    return [Part("0", whole, t.keys, t.whole, stages), Part(whole, blocks, None, t.score, cut)]


def _limits(t: Tiles) -> None:
    """Of a tile of rows: `first` and `last` have all keys that count for any of them, `inner` and
    `outer` only such as count for all."""
    k, s, bound = t.score, t.schedule, t.nest.bound
    k.line(f"first, inner, outer, last = 0, 0, {', '.join(_blocks(t))}")
    limit(t, "first", bound.low, most=False, up=False)
    limit(t, "inner", bound.low, most=True, up=True)
    limit(t, "last", bound.high, most=True, up=True)
    limit(t, "outer", bound.high, most=False, up=False)
    if s.splits > 1:
        k.line(f"per_share = tl.cdiv(tl.maximum(last - first, 0), {s.splits})")
        k.line("last = tl.minimum(first + (share + 1) * per_share, last)")
        k.line("first = first + share * per_share")
    else:
        k.line("inner = tl.minimum(inner, last)")
        k.line("outer = tl.maximum(tl.minimum(outer, last), inner)")


def limit(t: Tiles, name: str, index: Affine | None, most: bool, up: bool) -> None:
    """`name`: the block at a bound, if there is one: the least or the most of the tile's rows,
    rounded up or down."""
    if index is not None:
        block, length = t.schedule.block_keys, t.count(t.schedule.keys)
        value = f"tl.minimum(tl.maximum({extremes(t, index)[most]}, 0), {length})"
        text = f"tl.cdiv({value}, {block})" if up else f"{value} // {block}"
        t.score.line(f"{name} = {text}")


def _blocks(t: Tiles) -> tuple[str, str]:
    """How many whole blocks the keys have, and how many blocks."""
    block = t.schedule.block_keys
    if isinstance(t.keys, int):
        return str(t.keys // block), str(-(-t.keys // block))
    length = t.count(t.schedule.keys)
    return f"{length} // {block}", f"tl.cdiv({length}, {block})"


def extremes(t: Tiles, index: Affine) -> tuple[str, str]:
    """The least and the most that a map of rows is in the tile."""
    texts = ["", ""]
    for at, far in enumerate((False, True)):
        terms = [t.score.size(index.const)] if index.const != 0 or not index.terms else []
        for axis, coefficient in index.terms:
            rising = isinstance(coefficient, int) and coefficient > 0
            name = _end(t, axis, far == rising) if axis in t.schedule.rows else None
            name = name or f"{t.score.axis_variable(axis)}.to(tl.int32)"
            factor = f" * {t.score.size(coefficient)}" if coefficient != 1 else ""
            terms.append(name + factor)
        texts[at] = " + ".join(terms)
    return texts[0], texts[1]


def _end(t: Tiles, axis: str, last: bool) -> str:
    """Of the tile's rows along an axis, the first index or the last."""
    if t.schedule.rows == (axis,):
        block = t.schedule.block_rows
        most = f"tl.minimum(tile * {block} + {block - 1}, {t.count(t.schedule.rows)} - 1)"
        return most if last else f"tile * {block}"
    return f"tl.{'max' if last else 'min'}({t.score.axis_variable(axis)})"
