"""Gluon product kernels, their warps interleaved at random: what copies, multiplies and stores
agree on whose turn it is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import product_cases as cases
from gluon_interpreted import fails, interpret
from product_cases import Body
from product_check import problems
from torchweld.ir.size import symbol
from torchweld.templates.gemm.hopper.generate import generate
from torchweld.templates.gemm.schedule import ProductSchedule
from triton_cases import Case, tensors


def tiles(*tile, programs: int = 2, **more) -> ProductSchedule:
    return ProductSchedule("gluon", *tile, programs=programs, **more)


def two_batches(batch, heads, m, n, k) -> Case:
    """Heads that stay apart in a result [b, m, h, n]."""
    b = Body("bf16", b=batch, h=heads, m=m, n=n, k=k)
    made = b.dot(b.read("x", "bhmk"), b.read("w", "bhnk"))
    b.write("y", "bmhn", b.op("add", made, b.read("r", "bh")))
    return b.case("two_batches", None, {"s0": 2, "s1": 3})


TOGETHER = tiles(128, 128, 64, 8, 3)
IN_TURN = tiles(128, 128, 64, 4, 3, programs=1, pingpong=True)
ODD = tiles(64, 192, 64, 4, 2, programs=1, pingpong=True)
CASES = [
    (cases.linear(300, 264, 200), TOGETHER),
    (cases.linear(300, 392, 72), tiles(128, 192, 32, 8, 2, group=2)),
    (cases.linear(300, 392, 256), tiles(128, 192, 64, 8, 2)),
    (cases.bias_residual(300, 392, 72), tiles(128, 192, 64, 8, 3)),
    (cases.linear(264, 392, 136, left="km", right="kn"), tiles(128, 192, 64, 4, 2, pingpong=True)),
    (cases.linear("s0", 136, 8 * symbol("s1"), sizes={"s0": 201, "s1": 13}), TOGETHER),
    (cases.bias_residual(300, 520, 200), tiles(128, 256, 64, 8, 3)),
    (cases.scaled_outputs(300, 136, 72), TOGETHER),
    (cases.batched(3, 150, 136, 40), TOGETHER),
    (replace(cases.batched("s0", 150, 136, 40), sizes={"s0": 3}), TOGETHER),
    (two_batches(2, 3, 150, 72, 40), TOGETHER),
    (two_batches("s0", "s1", 150, 72, 40), TOGETHER),
    (cases.heads(3, 50, 4, 32, 96), tiles(64, 64, 32, 4, 4, pingpong=True)),
    (cases.gated(300, 200, 136), TOGETHER),
    (cases.two_lefts(304, 200, 136), TOGETHER),
    (cases.gated(100, 200, 136), tiles(64, 32, 128, 4, 3, pingpong=True)),
    *((cases.linear(500, 264, k), IN_TURN) for k in (40, 64, 136, 192, 200, 264)),
    (cases.bias_residual(500, 264, 72), IN_TURN),
    (cases.side_by_side(300, (264, 72), 136), TOGETHER),
    (cases.scattered(300, 136, 136), IN_TURN),
    (cases.side_by_side(300, (392, 136, 200), 72), tiles(128, 192, 64, 8, 2, group=2)),
    (cases.side_by_side(300, (136, 136, 264), 136), IN_TURN),
    (cases.side_by_side("s0", (136, 264), 136, sizes={"s0": 201}), TOGETHER),
    *((c, tiles(128, 64, 64, 4, 4, pingpong=True, early=True)) for c in (
        cases.bias_residual(500, 264, 136), cases.side_by_side(300, (136, 136, 264), 520),
        cases.linear("s0", 136, 264, sizes={"s0": 101}), cases.gated(300, 200, 136))),
    (cases.bias_residual(500, 392, 264), tiles(64, 128, 64, 4, 2, programs=3, pingpong=True)),
    (cases.gated(300, 200, 136), tiles(128, 64, 64, 4, 4, programs=1, pingpong=True)),
]


def title(value) -> str:
    if isinstance(value, str):
        return re.sub(r"\W+", "-", value).strip("-")
    if isinstance(value, Case):
        return f"{value.name}-{'x'.join(str(a.extent) for a in value.comp.axes)}"
    return f"{value.block_m}x{value.block_n}x{value.block_k}{'-in-turn' * value.pingpong}"


@pytest.mark.parametrize(
    "tiling", [TOGETHER, tiles(128, 64, 64, 4, 4, programs=1, pingpong=True)], ids=title
)
def test_columns_are_summed_tile_by_tile(tiling: ProductSchedule):
    """A second kernel adds up tiles."""
    case = cases.summed(300, 264, 72)
    bundle = generate(case.comp, case.buffers, tiling)
    (scratch,) = bundle.scratch
    made = tensors(case)
    made[scratch.name] = torch.full(scratch.shape, float("nan"))
    interpret(bundle.sources[0], made, {})
    made["s"].copy_(made[scratch.name].view(-1, 264).sum(0))
    assert problems(case, made) == []


@pytest.mark.parametrize("columns", [136, 132])
def test_two_sums_in_one_vector_have_tiles_of_their_own(columns):
    """The bias of a gated layer: the gradients of its halves lie side by side. Of 132 columns, the
    second half begins at no multiple of 16 bytes, up to which TMA would write the first."""
    case = cases.apart(cases.summed_halves(300, columns, 72), "wab")
    bundle = generate(case.comp, case.buffers, TOGETHER)
    made = tensors(case)
    for scratch in bundle.scratch:
        made[scratch.name] = torch.full(scratch.shape, float("nan"))
    interpret(bundle.sources[0], made, {})
    sums = [made[scratch.name].view(-1, columns).sum(0) for scratch in bundle.scratch]
    made["s"].copy_(torch.cat(sums))
    assert problems(case, made) == []


@pytest.mark.parametrize(("case", "schedule"), CASES, ids=title)
def test_results_whoever_runs_first(case: Case, schedule: ProductSchedule):
    (source,) = generate(case.comp, case.buffers, schedule, case.sizes).sources
    made = tensors(case)
    interpret(source, made, case.sizes)
    assert problems(case, made) == []


@pytest.mark.parametrize("case", [
    cases.linear(300, 392, 40), cases.bias_residual(300, 392, 40),
], ids=title)  # fmt: skip
def test_three_slices_of_a_tile_do_not_meet_those_of_the_next(case: Case):
    """The last of one tile and the first of the next are stored one after the other."""
    (source,) = generate(case.comp, case.buffers, ODD).sources
    assert not any(fails(case, source, seed) for seed in range(12))


RESIDUAL = cases.bias_residual(500, 264, 40)
NEEDED = [
    (cases.linear(500, 264, 136), IN_TURN, r"mbarrier.wait\(loops.*"),
    (cases.bias_residual(500, 392, 40), tiles(64, 128, 64, 4, 6, programs=1, pingpong=True),
     r"mbarrier.wait\(ends.*"),
    *((RESIDUAL, TOGETHER, f"mbarrier.wait\\({b}.*") for b in ("ready", "empty", "came", "used")),
    *((RESIDUAL, TOGETHER, f"mbarrier.arrive\\({b}.*") for b in ("empty", "used")),
    (RESIDUAL, TOGETHER, r"tma.store_wait\(1\)"),
    (RESIDUAL, TOGETHER, r"fence_async_shared\(\)(?=\n +mbarrier.arrive\(used)"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "schedule", "wait"), NEEDED, ids=title)
def test_without_a_barrier_something_is_wrong(case: Case, schedule: ProductSchedule, wait: str):
    (source,) = generate(case.comp, case.buffers, schedule, case.sizes).sources
    text, count = re.subn(wait, "pass", source.text)
    assert count > 0 and any(fails(case, replace(source, text=text), seed) for seed in range(20))
