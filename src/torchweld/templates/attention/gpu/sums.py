"""Sums of scores over a batch as one Triton kernel (templates/attention/sums.py has the form).

    for each turn:
        both factors of each product; scores [rows, keys], added to the tile's sums
    what follows, and stores
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.codegen.source import GridDim, KernelBundle
from torchweld.ir.nodes import Buffer, Comp
from torchweld.templates.attention.gpu import template
from torchweld.templates.attention.gpu.generate import place_faces, store
from torchweld.templates.attention.gpu.keys import limit
from torchweld.templates.attention.gpu.schedule import NestSchedule, is_fast
from torchweld.templates.attention.gpu.template import work_of
from torchweld.templates.attention.gpu.tiles import Tiles, tiles_of
from torchweld.templates.attention.gpu.walk import factor, hoist, masked, scores_of
from torchweld.templates.attention.nest import Nest
from torchweld.templates.attention.sums import sums_of
from torchweld.templates.pointwise_reduce.gpu.walks import rounded
from torchweld.templates.template import Problem, Template, no_reference

_WIDEST = 64  # of float32 in parts: 128 spills up to 536 bytes


def match(problem: Problem) -> Nest | None:
    return sums_of(problem.comp)


def supports(nest: Nest, problem: Problem) -> str | None:
    work = work_of(nest, problem)
    if work.is_wide and max(work.widths()) > _WIDEST:
        return f"the gradient of a bias in float32, of heads of more than {_WIDEST}"
    return template.supports(nest, problem)


def generate(nest: Nest, schedule: NestSchedule, problem: Problem) -> KernelBundle:
    early = problem.target.begins_early
    return code(problem.comp, problem.buffers, nest, schedule, early)


def code(
    comp: Comp, buffers: Mapping[str, Buffer], nest: Nest, schedule: NestSchedule, early: bool
) -> KernelBundle:
    """The kernel of `comp`, which is `nest`. `early`: it begins while the one before still runs."""
    t = tiles_of(comp, buffers, nest, schedule, is_fast(comp, nest))
    k, (walk,) = t.score, nest.walks
    _position(t)
    if early:
        k.line(k.helper("_await_previous()"))
    (total,) = walk.reductions
    k.line(f"acc{total} = tl.zeros([{schedule.block_rows}, {schedule.block_keys}], tl.float32)")
    hoist(t, walk)
    known = {id(f): dict(f.known) for f in _faces(t)}
    turns = _turns(t)
    with k.indented(f"for turn in tl.range(0, {turns}, num_stages={schedule.stages}):"):
        k.line("around = tl.full((), turn, tl.int32)")
        k.split_axes("around", t.around)
        for inner in nest.inners:
            factor(t.left[inner.depth], inner.row)
        scores_of(t, k, walk)
        k.line(f"acc{total} += {masked(k, 'sum', k.arg(total))}")
    for face in _faces(t):
        face.known = known[id(face)]
    k.known[total] = f"acc{total}"
    store(t)
    grid = (
        GridDim(t.points(t.batch)), GridDim(t.rows, schedule.block_rows),
        GridDim(t.keys, schedule.block_keys),
    )  # fmt: skip
    return KernelBundle(comp.name, (replace(k.source(grid), early=early),))


def _faces(t: Tiles) -> list:
    return [t.score, *t.left.values(), *t.right.values()]


def _position(t: Tiles) -> None:
    k, s = t.score, t.schedule
    k.line("batch, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)")
    place_faces(t)
    k.block("lc", "part", s.block_keys, s.keys, rounded(t.keys, s.block_keys))


def _turns(t: Tiles) -> str:
    """How many turns there are: none for a tile that the bound leaves out."""
    k, bound, count = t.score, t.nest.bound, t.count(t.around)
    if bound.low is None and bound.high is None:
        return count
    k.line(f"first, last = 0, tl.cdiv({t.count(t.schedule.keys)}, {t.schedule.block_keys})")
    limit(t, "first", bound.low, most=False, up=False)
    limit(t, "last", bound.high, most=True, up=True)
    k.line(f"turns = tl.where((part >= first) & (part < last), {count}, 0)")
    return "turns"


TEMPLATE = Template(
    "attention/gpu/sums", match, supports, template.schedules, template.price, generate,
    no_reference,
)  # fmt: skip
