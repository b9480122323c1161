"""Convolutions as products over images, in Gluon: boxes of places, taps, edges, steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gluon_interpreted import interpret
from image_cases import convolution, normalised
from product_cases import from_heads, parts
from product_check import problems
from torchweld.targets.find import named_target
from torchweld.templates.gemm.hopper.generate import generate
from torchweld.templates.gemm.hopper.images import best_box, boxes_of
from torchweld.templates.gemm.hopper.schedule import candidates, supports
from torchweld.templates.gemm.schedule import ProductSchedule
from triton_cases import Case, tensors, title

TABLE = named_target("H100")
ALONE = ProductSchedule("gluon", 64, 64, 64, 4, 3, programs=2, pingpong=True)
TOGETHER = ProductSchedule("gluon", 128, 64, 64, 8, 3, programs=2)
SHORT = replace(ALONE, block_k=32)

CASES = [
    (convolution(2, 64, (12, 10), 72, (3, 3), padding=1), ALONE),
    (convolution(2, 64, (12, 10), 72, (3, 3), padding=1, dtype="f16"), TOGETHER),
    (convolution(3, 40, (9, 7), 64, (3, 3)), ALONE),  # no padding, channels not in whole steps
    (convolution(1, 64, (13, 11), 64, (5, 3), padding=2), ALONE),
    (convolution(2, 64, (14, 12), 64, (3, 3), stride=2, padding=1), ALONE),
    (convolution(2, 64, (15, 9), 64, (3, 3), stride=3, padding=1), ALONE),
    (convolution(2, 72, (14, 12), 64, (1, 1), stride=2), ALONE),
    (convolution(2, 32, (12, 12), 64, (3, 3), padding=2, dilation=2), SHORT),
    (convolution(2, 128, (12, 12), 96, (3, 3), padding=1, groups=2), SHORT),
    (convolution(3, 24, (70,), 40, (5,), padding=2), ALONE),
    (convolution(1, 64, (70,), 64, (4,), stride=2, padding=1), ALONE),
    (convolution(1, 32, (5, 6, 7), 64, (3, 3, 3), padding=1), SHORT),
    (normalised(2, 64, (12, 10), 72, (3, 3), padding=1), ALONE),
    (normalised(2, 64, (11, 9), 64, (3, 3), padding=1), TOGETHER),
    (normalised(2, 64, (16, 16), 64, (3, 3), stride=2, padding=1), ALONE),
    (from_heads(3, 50, 4, 64, 128), ALONE),  # a head is a tap
    (from_heads(3, 50, 4, 32, 128), SHORT),
]


def boxed(case: Case, schedule: ProductSchedule) -> ProductSchedule:
    accesses, contraction = parts(case)
    extents = [accesses.comp.extent(a) for a in contraction.rows]
    return replace(schedule, box=best_box(extents, schedule.block_m))


@pytest.mark.parametrize(
    ("case", "schedule"), CASES, ids=lambda v: title(v) if isinstance(v, Case) else ""
)
def test_results(case: Case, schedule: ProductSchedule):
    assert supports(*parts(case), TABLE) is None
    (source,) = generate(case.comp, case.buffers, boxed(case, schedule)).sources
    made = tensors(case)
    interpret(source, made, {})
    assert problems(case, made) == []


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (convolution(2, 12, (8, 8), 16, (3, 3), padding=1), "not aligned"),
        (convolution(2, 64, (15, 15), 64, (3, 3), stride=2, padding=1), "no step divides"),
        (convolution(2, 72, (12, 12), 64, (2, 2), stride=2, padding=1), "NO CANDIDATE"),
    ],
    ids=lambda v: v.replace(" ", "-") if isinstance(v, str) else "",
)
def test_refused(case: Case, why: str):
    refusal = supports(*parts(case), TABLE)
    if why == "NO CANDIDATE":
        assert refusal is None and not list(candidates(*parts(case), TABLE))
    else:
        assert why in refusal


def test_boxes_cover_with_little_waste():
    assert best_box((64, 56, 56), 128) == (2, 8, 8)
    assert boxes_of((64, 28, 28), best_box((64, 28, 28), 128)) == 64 * 28 * 28 // 128
    assert boxes_of((64, 7, 7), best_box((64, 7, 7), 128)) <= 1.31 * 64 * 49 / 128
