"""The Gluon product template on a GPU: every kind of epilogue against float64, over sizes,
alignments and dtypes. Few programs walk over many tiles, so that rings of stages and slots wrap."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import product_cases as cases
from product_cases import parts, tiled_title
from product_check import problems
from torchweld.codegen.source import KernelBundle
from torchweld.ir.size import symbol
from torchweld.templates.gemm.hopper import schedule as product_gluon
from torchweld.templates.gemm.hopper.generate import generate
from torchweld.templates.gemm.schedule import ProductSchedule
from triton_cases import Case, tensors
from triton_run import H100, compile_in_processes, launch, prepare

pytestmark = pytest.mark.hopper

TILES = (
    ProductSchedule("gluon", 128, 256, 64, 8, 4, programs=3, early=True),
    ProductSchedule("gluon", 128, 128, 64, 4, 4, programs=2, pingpong=True),
    ProductSchedule("gluon", 128, 192, 64, 8, 3, programs=2),
    ProductSchedule("gluon", 128, 192, 64, 4, 3, programs=3, group=2, pingpong=True),
    ProductSchedule("gluon", 64, 64, 64, 4, 5, programs=3, early=True, pingpong=True),
    ProductSchedule("gluon", 64, 128, 32, 4, 3, programs=132, pingpong=True),
    ProductSchedule("gluon", 64, 32, 128, 4, 3, programs=5, early=True, pingpong=True),
)
PAIRS = (
    ProductSchedule("gluon", 128, 128, 64, 8, 4, programs=3),
    ProductSchedule("gluon", 128, 64, 64, 4, 4, programs=2, pingpong=True),
    ProductSchedule("gluon", 64, 64, 64, 4, 6, programs=2, pingpong=True),
    ProductSchedule("gluon", 64, 32, 64, 4, 6, programs=4, early=True, pingpong=True),
)


def epilogues(dtype: str) -> list[Case]:
    return [
        cases.linear(256, 128, 64, dtype),
        cases.linear(255, 136, 128, dtype),
        cases.linear(1000, 520, 328, dtype),
        cases.linear(304, 200, 72, dtype, "km", "kn"),
        cases.linear(129, 333, 104, dtype),
        cases.linear(129, 333, 104, dtype, gap=8),
        cases.apart(cases.biased(255, 195, 63, dtype), "xwy"),
        cases.apart(cases.linear(195, 99, 130, dtype, "km", "kn"), "xwy"),
        cases.linear("s0", 136, 72, dtype, sizes={"s0": 201}),
        cases.linear("s0", 136, 72, dtype, sizes={"s0": 1}),
        cases.linear(136, 72, 8 * symbol("s0"), dtype, sizes={"s0": 13}),
        cases.bias_gelu(531, 264, 72, dtype),
        cases.bias_gelu("s0", 256, 64, dtype, sizes={"s0": 70}),
        cases.bias_residual(257, 384, 192, dtype),
        cases.bias_residual(700, 392, 136, dtype),
        cases.scaled_outputs(300, 136, 88, dtype),
        cases.heads(3, 50, 4, 32, 96, dtype),
        cases.heads(3, 50, 4, 32, 96, dtype, transposed=True),
        cases.batched(6, 70, 96, 40, dtype),
        cases.batched(6, 170, 90, 40, dtype, "bnk"),
        cases.dropout(130, 200, 64, dtype),
        cases.lower_half(130, 200, 64, dtype),
        cases.hard(cases.bias_gelu(131, 264, 72, dtype), 131, 72),
        cases.side_by_side(531, (264, 72, 136), 200, dtype),
        *(cases.side_by_side(531, (264, 136), 200, dtype, None, {k}) for k in (0, 1)),
        cases.scattered(531, 264, 200, dtype),
        cases.side_by_side("s0", (264, 72), 136, dtype, {"s0": 201}),
        cases.two_lefts(304, 200, 136, dtype),
        cases.summed(531, 264, 72, dtype),
        cases.summed_halves(531, 264, 72, dtype),
        cases.apart(cases.summed_halves(531, 132, 72, dtype), "wab"),
        cases.gelu_backward(700, 392, 136, dtype),
    ]


def fitting(case: Case) -> list[Case]:
    """The case with each tiling that is valid for it."""
    accesses, found = parts(case)
    tiles = PAIRS if len(found.products) == 2 else TILES
    assert product_gluon.supports(accesses, found, H100) is None
    return [replace(case, schedule=s) for s in tiles if product_gluon.valid(s, accesses, found)]


GATED = [cases.gated(530, 392, 200), cases.gated(250, 200, 136, "f16")]
ALL = [tiled for c in (*epilogues("bf16"), *GATED) for tiled in fitting(c)]
ALL += [fitting(c)[k % 2] for k, c in enumerate(epilogues("f16"))]
ALL.sort(key=lambda c: c.schedule.pingpong)  # last: its barriers are the most intricate


def bundle_of(case: Case) -> KernelBundle:
    return generate(case.comp, case.buffers, case.schedule, case.sizes)


@pytest.fixture(scope="module")
def compiled() -> dict:
    return compile_in_processes(s for c in ALL for s in bundle_of(c).sources)


def run(case: Case, compiled: dict, made: dict) -> None:
    """All kernels of the case; `made` gets what is passed between them."""
    bundle = bundle_of(case)
    prepare(case, bundle, made)
    launch(case, bundle, made, compiled)


@pytest.mark.parametrize("case", ALL, ids=tiled_title)
def test_results_are_as_exact_as_eager(case: Case, compiled: dict):
    made = tensors(case, "cuda")
    run(case, compiled, made)
    assert problems(case, {n: made[n].cpu() for n in case.comp.writes}) == []


def test_results_repeat(compiled: dict):
    case = next(c for c in ALL if c.name == "bias_residual" and c.schedule.pingpong)
    made, found = tensors(case, "cuda"), []
    for _ in range(20):
        made["y"].fill_(1)
        run(case, compiled, made)
        found.append(made["y"].clone())
    assert all(torch.equal(found[0], again) for again in found)


@pytest.mark.parametrize("odd", ["x", "w", "r", "y"])
def test_unaligned_addresses(odd: str):
    """TMA does not take them: the Triton kernel does."""
    case = fitting(cases.bias_residual(70, 136, 72))[0]
    made = tensors(case, "cuda")
    memory = torch.empty(made[odd].numel() + 1, dtype=made[odd].dtype, device="cuda")
    made[odd] = memory[1:].view(made[odd].shape).copy_(made[odd])
    run(case, compile_in_processes(bundle_of(case).sources), made)
    assert problems(case, {"y": made["y"].cpu()}) == []
