"""Convolutions as products over images on a GPU, against float64: odd sizes, edges, steps, groups,
volumes, and what follows them. Few programs walk over many tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from image_cases import convolution, normalised, phased
from product_cases import from_heads, parts, tiled_title
from product_check import problems
from torchweld.templates.gemm.hopper import schedule as product_gluon
from torchweld.templates.gemm.hopper.generate import generate
from torchweld.templates.gemm.hopper.images import best_box
from torchweld.templates.gemm.schedule import ProductSchedule
from triton_cases import Case, tensors
from triton_run import H100, compile_in_processes, launch, prepare

pytestmark = pytest.mark.hopper

TILES = (
    ProductSchedule("gluon", 128, 128, 64, 8, 4, programs=3),
    ProductSchedule("gluon", 128, 64, 64, 4, 5, programs=2, pingpong=True),
    ProductSchedule("gluon", 64, 64, 32, 4, 5, programs=5, early=True, pingpong=True),
)


def every(dtype: str) -> list[Case]:
    return [
        convolution(3, 64, (20, 18), 72, (3, 3), padding=1, dtype=dtype),
        convolution(3, 40, (17, 23), 64, (3, 3), dtype=dtype),
        convolution(2, 128, (13, 11), 136, (5, 3), padding=2, dtype=dtype),
        convolution(4, 64, (28, 28), 128, (3, 3), stride=2, padding=1, dtype=dtype),
        convolution(2, 64, (14, 20), 64, (5, 5), stride=2, padding=2, dtype=dtype),
        convolution(4, 64, (15, 21), 64, (3, 3), stride=3, padding=1, dtype=dtype),
        convolution(3, 136, (14, 15), 64, (1, 1), stride=2, dtype=dtype),
        convolution(2, 64, (24, 24), 64, (3, 3), padding=2, dilation=2, dtype=dtype),
        convolution(2, 256, (12, 12), 96, (3, 3), padding=1, groups=4, dtype=dtype),
        convolution(3, 96, (12, 14), 144, (3, 3), stride=2, padding=1, groups=3, dtype=dtype),
        convolution(3, 120, (12, 14), 120, (3, 3), stride=2, padding=1, groups=5, dtype=dtype),
        convolution(3, 120, (13, 11), 120, (3, 3), padding=1, groups=5, dtype=dtype),
        convolution(3, 64, (13, 11), 72, (3, 3), padding=1, behind=40, dtype=dtype),
        convolution(2, 32, (12, 8), 64, (3, 3), stride=2, padding=2, dilation=2, behind=32,
                    dtype=dtype),
        convolution(5, 24, (301,), 40, (5,), padding=2, dtype=dtype),
        convolution(3, 64, (302,), 64, (8,), stride=2, padding=3, dtype=dtype),
        convolution(2, 32, (9, 10, 11), 64, (3, 3, 3), padding=1, dtype=dtype),
        convolution(2, 32, (9, 10, 11), 64, (3, 5, 7), padding=(1, 2, 3), dtype=dtype),
        convolution(3, 64, (1, 301), 72, (1, 5), padding=(0, 2), dtype=dtype),  # one row
        phased(3, 64, (13, 11), 72, 4, dtype=dtype),
        phased(3, 64, (13, 11), 64, 3, padding=0, dtype=dtype),
        phased(3, 128, (9, 10), 64, 4, groups=2, dtype=dtype),
        phased(2, 32, (5, 6, 7), 16, 3, dtype=dtype),
        phased(3, 64, (301,), 64, 4, dtype=dtype),
        normalised(3, 64, (20, 18), 72, (3, 3), padding=1, dtype=dtype),
        normalised(4, 64, (28, 28), 128, (3, 3), stride=2, padding=1, dtype=dtype),
        normalised(9, 256, (7, 7), 264, (3, 3), padding=1, dtype=dtype),
        from_heads(3, 150, 4, 64, 136, dtype),  # a head is a tap
    ]


def fitting(case: Case) -> list[Case]:
    """The case with each tiling that is valid for it."""
    accesses, found = parts(case)
    assert product_gluon.supports(accesses, found, H100) is None
    extents = [accesses.comp.extent(a) for a in found.rows]
    tiles = (replace(s, box=best_box(extents, s.block_m)) for s in TILES)
    return [replace(case, schedule=s) for s in tiles if product_gluon.valid(s, accesses, found)]


ALL = [tiled for c in every("bf16") for tiled in fitting(c)]
ALL += [fitting(c)[0] for c in every("f16")]


@pytest.fixture(scope="module")
def compiled() -> dict:
    return compile_in_processes(s for c in ALL for s in bundle_of(c).sources)


def bundle_of(case: Case):
    return generate(case.comp, case.buffers, case.schedule, case.sizes)


@pytest.mark.parametrize("case", ALL, ids=tiled_title)
def test_results_are_as_exact_as_eager(case: Case, compiled: dict):
    made, bundle = tensors(case, "cuda"), bundle_of(case)
    prepare(case, bundle, made)
    launch(case, bundle, made, compiled)
    assert problems(case, {n: made[n].cpu() for n in case.comp.writes}) == []


@pytest.mark.parametrize("odd", ["x", "w", "r", "z"])
def test_unaligned_addresses(odd: str):
    """TMA does not take them: the Triton kernel does."""
    case = fitting(normalised(2, 64, (9, 10), 64, (3, 3), padding=1))[0]
    made, bundle = tensors(case, "cuda"), bundle_of(case)
    memory = torch.empty(made[odd].numel() + 1, dtype=made[odd].dtype, device="cuda")
    moved = memory[1:].as_strided(made[odd].shape, made[odd].stride(), 1)
    made[odd] = moved.copy_(made[odd])
    prepare(case, bundle, made)
    launch(case, bundle, made, compile_in_processes(bundle.sources))
    assert problems(case, {n: made[n].cpu() for n in case.comp.writes}) == []


def test_copies_do_not_overtake_the_loads_of_many_tiles():
    """All multiprocessors, each with four tiles and one slot for residuals: the same bits each
    time. A fence was missing (codegen/gluon/names.py)."""
    case = replace(
        normalised(16, 64, (64, 64), 64, (3, 3), padding=1),
        schedule=ProductSchedule("gluon", 128, 64, 64, 4, 7, early=True, pingpong=True,
                                 box=(1, 2, 64)),
    )  # fmt: skip
    made, bundle = tensors(case, "cuda"), bundle_of(case)
    prepare(case, bundle, made)
    launchers, found = compile_in_processes(bundle.sources), []
    for _ in range(12):
        launch(case, bundle, made, launchers)
        found.append(made["z"].clone())
    assert all(torch.equal(found[0], again) for again in found)
