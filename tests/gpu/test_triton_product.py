"""The Triton product template on a GPU: every kind of factor and epilogue against float64, over
sizes, alignments and dtypes, with default tiles and with all others."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import product_cases as cases
from image_cases import convolution, normalised
from product_cases import parts, tiled_title
from product_check import problems
from torchweld.core import dtypes
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.triton.schedule import candidates
from triton_cases import Case, tensors
from triton_run import H100, compile_in_processes, gpu_starter, launches, prepare, product_bundle


def epilogues(dtype: str) -> list[Case]:
    return [
        cases.linear(256, 128, 64, dtype),
        cases.linear(255, 129, 127, dtype),
        cases.linear(300, 200, 72, dtype, "km", "kn"),
        cases.linear(129, 333, 100, dtype, gap=3),
        cases.apart(cases.linear(195, 99, 70, dtype, "km", "kn")),
        cases.apart(cases.linear(130, 63, 195, dtype, "mk", "kn"), "xwy"),
        cases.linear("s0", 136, 72, dtype, sizes={"s0": 201}),
        cases.linear(136, 72, "s0", dtype, sizes={"s0": 100}),
        cases.bias_gelu(131, 257, 65, dtype),
        cases.bias_gelu("s0", 256, 64, dtype, sizes={"s0": 70}),
        cases.bias_residual(257, 384, 192, dtype),
        cases.gated(250, 200, 136, dtype),
        cases.normed(30, 264, 200, dtype),
        cases.scaled_outputs(100, 130, 88, dtype),
        cases.heads(3, 50, 4, 32, 96, dtype),
        cases.heads(3, 50, 4, 32, 96, dtype, transposed=True),
        cases.from_heads(3, 50, 4, 32, 130, dtype),
        cases.batched(6, 70, 90, 40, dtype),
        cases.batched(6, 70, 90, 40, dtype, "bnk"),
        convolution(3, 64, (11, 13), 96, (1, 1), groups=2, dtype=dtype),
        convolution(3, 72, (11, 13), 108, (1, 1), stride=2, groups=9, dtype=dtype),
        normalised(3, 48, (9, 7), 48, (1, 1), groups=3, dtype=dtype),
        cases.gate_before(130, 100, 200, dtype),
        cases.scaled_before(130, 100, 77, dtype),
        cases.shifted(130, 100, 77, dtype),
        cases.gathered(130, 100, 72, dtype),
        cases.dropout(130, 100, 64, dtype),
        cases.lower_half(130, 100, 64, dtype),
        cases.summed(131, 100, 72, dtype),
        cases.summed_halves(131, 100, 72, dtype),
        cases.gelu_backward(700, 136, 64, dtype),
        cases.hard(cases.bias_gelu(131, 257, 65, dtype), 131, 65),
    ]


def wide() -> list[Case]:
    """Of float32, split in registers."""
    return [
        cases.linear(256, 128, 64, "f32"),
        cases.linear(255, 129, 127, "f32"),
        cases.linear(300, 200, 72, "f32", "km", "kn"),
        cases.linear(129, 333, 100, "f32", gap=3),
        cases.apart(cases.linear(195, 99, 70, "f32", "km", "kn")),
        cases.linear("s0", 136, 72, "f32", sizes={"s0": 201}),
        cases.linear(200, 264, 4096, "f32"),
        cases.bias_gelu(131, 257, 65, "f32"),
        cases.bias_residual(257, 384, 192, "f32"),
        cases.gated(250, 200, 136, "f32"),
        cases.scaled_outputs(100, 130, 88, "f32"),
        cases.heads(3, 50, 4, 32, 96, "f32"),
        cases.batched(6, 70, 90, 40, "f32"),
        cases.batched(6, 70, 90, 40, "f32", "bnk"),
        cases.summed(131, 100, 72, "f32"),
        cases.gelu_backward(700, 136, 64, "f32"),
        cases.hard(cases.bias_gelu(131, 257, 65, "f32"), 131, 65),
    ]


def streams(dtype: str) -> list[Case]:
    return [
        *(cases.linear(m, 300, 1000, dtype) for m in (1, 2, 16, 17, 64)),
        cases.bias_residual(1, 2048, 2048, dtype),
        cases.bias_residual(5, 129, 4100, dtype),
        cases.gated(1, 520, 1024, dtype),
        cases.gated(33, 130, 777, dtype),
        cases.normed(1, 300, 1024, dtype),
        cases.normed(7, 300, 1000, dtype, pair=True),
        cases.hard(cases.gated(9, 200, 512, dtype), 9, 512),
        cases.hard(cases.linear(1, 200, 512, dtype), 1, 512),
        cases.batched(4, 1, 300, 512, dtype, "bnk"),
        cases.linear(16, 264, 4096, dtype, right="kn"),
        cases.linear(128, 200, 1024, dtype),
        cases.three(9, 200, 1024, dtype),
        cases.side_by_side(16, (256, 64, 64), 1024, dtype),
        cases.side_by_side(1, (256, 64, 64), 1024, dtype),
        cases.side_by_side(7, (100, 60), 520, dtype),
        cases.into_cache(7, 8, 2, 24, 520, dtype),
        cases.rotary(7, (6, 2, 1), 48, 520, dtype),
        cases.rotary(1, (6, 2, 1), 64, 520, dtype, interleaved=True),
        *(cases.int8_weight(m, 300, 1000, dtype) for m in (1, 2, 16, 17, 64)),
        *(cases.int8_weight(m, 300, 1000, dtype, packed)
          for packed in (dtypes.f8e4m3, dtypes.f8e5m2) for m in (1, 17)),
        *(cases.integers(m, 300, 1000, dtype) for m in (17, 64, 130, 1025)),
        cases.int8_weight(1, 1024, 4096, dtype),
        *(cases.nibbles(m, 300, 8, 64, dtype) for m in (1, 2, 16, 17, 64)),
        cases.nibbles(1, 129, 7, 16, dtype),
        cases.nibbles(3, 200, 1, 333, dtype),
    ]


def _near(case: Case) -> list[Case]:
    """The case with each schedule that a tuner may time."""
    return [replace(case, schedule=s) for s in candidates(*parts(case), H100, case.sizes)]


TILES = [
    ProductSchedule("triton", *tile)
    for tile in ((16, 16, 16, 1, 2), (32, 64, 32, 2, 4), (64, 256, 64, 8, 3), (128, 32, 128, 4, 2))
]
SWEPT = [
    *_near(cases.bias_residual(200, 300, 136)),
    *_near(cases.gated(200, 300, 136)),
    *_near(cases.normed(13, 264, 2000, pair=True)),
    *_near(cases.residual(1, 264, 2000)),
    *_near(cases.int8_weight(1, 264, 2000)),
    *_near(cases.nibbles(9, 264, 16, 64)),
    *(replace(cases.bias_residual(200, 300, 136), schedule=s) for s in TILES),
]
ALL = [c for d in ("bf16", "f16") for c in (*epilogues(d), *streams(d))] + wide() + SWEPT
SHARED = [c for c in ALL if product_bundle(c).zeroed]


@pytest.fixture(scope="module")
def compiled() -> dict:
    return compile_in_processes([s for c in ALL for s in product_bundle(c).sources])


def run(case: Case, compiled: dict, times: int = 1) -> list[dict[str, torch.Tensor]]:
    """The results of each of several calls; counters are zero again after each."""
    found, made, bundle = [], tensors(case, "cuda"), product_bundle(case)
    prepare(case, bundle, made)
    for _ in range(times):
        for name in case.comp.writes:
            made[name].fill_(1)
        launches(case, bundle, made, gpu_starter(compiled))
        found.append({n: made[n].cpu() for n in case.comp.writes})
        assert not any(made[n].any() for n in bundle.zeroed)
    return found


@pytest.mark.parametrize("case", ALL, ids=tiled_title)
def test_results_are_as_exact_as_eager(case: Case, compiled: dict):
    assert problems(case, run(case, compiled)[0]) == []


@pytest.mark.parametrize("case", SHARED, ids=tiled_title)
def test_shared_depth_repeats(case: Case, compiled: dict):
    first, *others = run(case, compiled, times=5)
    for again in others:
        assert all(torch.equal(_bits(first[n]), _bits(again[n])) for n in first)


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view({4: torch.int32, 2: torch.int16, 1: torch.int8}[t.element_size()])


@pytest.mark.parametrize("splits", (1, 2))
def test_kernels_that_begin_early_wait_for_what_they_read(splits: int):
    """A chain of products, each of the result of the one before, in a CUDA graph."""
    case = cases.linear(16, 512, 512)
    early = ProductSchedule("stream", 16, 32, 128, 4, 4, 1, splits, early=True)
    bundle, made = product_bundle(case, early), tensors(case, "cuda")
    prepare(case, bundle, made)
    made["w"].mul_(512**-0.5)
    start = gpu_starter(compile_in_processes(bundle.sources))
    chain = [made["x"], *(torch.zeros_like(made["x"]) for _ in range(30))]

    def run(wait: bool) -> torch.Tensor:
        for x, y in pairwise(chain):
            launches(case, bundle, {**made, "x": x, "y": y}, start)
            if wait:
                torch.cuda.synchronize()
        return chain[-1]

    expected = run(wait=True).clone()
    assert expected.abs().max() > 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(wait=False)
    for _ in range(20):
        for y in chain[1:]:
            y.zero_()
        graph.replay()
        assert torch.equal(chain[-1], expected)


def test_unaligned_pointers():
    """Tensors that start at an odd element get a binary that does not assume 16 bytes."""
    case = cases.bias_residual(70, 136, 72)
    bundle, made = product_bundle(case), tensors(case, "cuda")
    for name in ("x", "w"):
        memory = torch.empty(made[name].numel() + 1, dtype=made[name].dtype, device="cuda")
        made[name] = memory[1:].view(made[name].shape).copy_(made[name])
    compiled = compile_in_processes(bundle.sources)
    launches(case, bundle, made, gpu_starter(compiled))
    assert problems(case, {"y": made["y"].cpu()}) == []
