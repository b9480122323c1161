"""Streams of few rows on a Hopper GPU: every kind of epilogue against float64, shares of the depth,
and what begins before the kernel in front has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import product_cases as cases
import torchweld
from product_cases import parts, tiled_title
from product_check import problems
from torchweld.codegen.source import KernelBundle
from torchweld.core import dtypes
from torchweld.runtime.dispatch import Pointer
from torchweld.runtime.launcher import launch_plan
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.skinny import schedule as product_stream
from torchweld.templates.gemm.skinny.generate import generate
from triton_cases import Case, tensors
from triton_run import H100, compile_in_processes

pytestmark = pytest.mark.hopper


def small(block_m: int, block_n: int, block_k: int, stages: int, splits: int) -> ProductSchedule:
    """Rings that wrap, blocks that share a multiprocessor."""
    return ProductSchedule("gluon stream", block_m, block_n, block_k, block_n // 16, stages, 1,
                           splits, True)  # fmt: skip


def epilogues(dtype: str) -> list[Case]:
    return [
        *(cases.linear(m, 328, 1000, dtype) for m in (1, 2, 8, 9, 16, 33, 64)),
        cases.linear(70, 136, 264, dtype),
        cases.linear(16, 333, 104, dtype),
        cases.linear(5, 200, 1000, dtype, right="kn"),
        *(cases.linear(m, 136, 264, dtype, "km") for m in (8, 16, 64)),
        cases.linear(16, 136, 1000, dtype, gap=8),
        cases.linear("s0", 136, 520, dtype, sizes={"s0": 19}),
        *(cases.linear("s0", 328, 2048, dtype, sizes={"s0": m}) for m in (1, 64, 130)),
        cases.gated("s0", 328, 1000, dtype, sizes={"s0": 70}),
        cases.bias_gelu(11, 3072, 768, dtype),
        cases.bias_residual(7, 768, 3072, dtype),
        cases.residual(16, 2048, 8192, dtype),
        cases.gated(16, 1000, 2048, dtype),
        cases.gated(64, 328, 520, dtype),
        cases.three(3, 2048, 520, dtype),
        cases.scaled_outputs(7, 136, 712, dtype),
        cases.dropout(13, 200, 640, dtype),
        cases.hard(cases.bias_gelu(13, 264, 712, dtype), 13, 712),
        cases.side_by_side(16, (2048, 512, 520), 520, dtype),
        cases.side_by_side(1, (200, 72, 136), 2048, dtype),
        cases.into_cache(16, 32, 8, 64, 520, dtype),
        cases.scattered(13, 328, 520, dtype),
        cases.rotary(16, (32, 8, 8), 64, 2048, dtype),
        cases.rotary(7, (5, 1, 2), 128, 520, dtype),
        cases.rotary(1, (4, 1, 1), 256, 1152, dtype),
        cases.rotary(33, (6, 2, 2), 48, 264, dtype, interleaved=True),
    ]


def fitting(case: Case) -> list[Case]:
    """The case in its default tiles, in a candidate and in a small tiling."""
    accesses, found = parts(case)
    assert product_stream.supports(accesses, found, H100) is None
    tiles = list(product_stream.candidates(accesses, found, H100, case.sizes))
    block_m = tiles[0].block_m if tiles else 64
    tiles = [*tiles[:1], *tiles[-1:], *(small(block_m, *more) for more in
             ((64, 64, 2, 3), (128, 64, 3, 1)))]
    return [replace(case, schedule=s) for s in tiles if product_stream.valid(s, accesses, found)]


ALL = [tiled for c in epilogues("bf16") for tiled in fitting(c)]
ALL += [fitting(c)[k % 2] for k, c in enumerate(epilogues("f16"))]


def bundle_of(case: Case) -> KernelBundle:
    return generate(case.comp, case.buffers, case.schedule, case.sizes)


@pytest.fixture(scope="module")
def compiled() -> dict:
    return compile_in_processes(bundle_of(c).sources[0] for c in ALL)


def launcher(case: Case, compiled: dict, made: dict):
    bundle = bundle_of(case)
    source = bundle.sources[0]
    for b in bundle.scratch:
        made[b.name] = torch.zeros(b.shape, dtype=dtypes.to_torch(b.dtype), device="cuda")
    slots = {n: i for i, n in enumerate(made)}
    plan = launch_plan(source, compiled[source], lambda n: Pointer(slots[n]), case.sizes)

    def start() -> None:
        bases = [t.data_ptr() for t in made.values()]
        plan(bases, 0, torch.cuda.current_stream().cuda_stream)

    return start


@pytest.mark.parametrize("case", ALL, ids=tiled_title)
def test_results_are_as_exact_as_eager_and_repeat(case: Case, compiled: dict):
    made = tensors(case, "cuda")
    start = launcher(case, compiled, made)
    start()
    first = {n: made[n].clone() for n in case.comp.writes}
    assert problems(case, {n: t.cpu() for n, t in made.items()}) == []
    for _ in range(20):
        start()
    same = (torch.equal(made[n].nan_to_num(), first[n].nan_to_num()) for n in first)
    assert all(same)


def test_addresses_that_are_no_multiple_of_16_bytes(compiled: dict):
    case = next(c for c in ALL if c.name == "bias_residual")
    made = tensors(case, "cuda")
    for name in ("x", "w"):
        moved = torch.empty(made[name].numel() + 1, dtype=torch.bfloat16, device="cuda")[1:]
        made[name] = moved.view_as(made[name]).copy_(made[name])
    launcher(case, compiled, made)()
    assert problems(case, {n: t.cpu() for n, t in made.items()}) == []


def test_a_chain_in_a_graph_waits_for_what_is_in_front():
    """Each product reads what the one before it has just written."""
    torch.manual_seed(0)
    case = cases.linear(16, 512, 512)
    case = fitting(case)[0]
    source = bundle_of(case).sources[0]
    compiled = compile_in_processes([source])
    weights = [torch.randn(512, 512, device="cuda").bfloat16() / 22 for _ in range(24)]
    x = torch.randn(16, 512, device="cuda").bfloat16()
    results = [torch.empty_like(x) for _ in weights]
    calls, left = [], x
    for w, y in zip(weights, results):
        calls.append(launcher(case, compiled, {"x": left, "w": w, "y": y}))
        left = y
    calls[0]()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(10):
        x.normal_()
        for y in results:
            y.fill_(float("nan"))
        graph.replay()
        left = x
        for w, y in zip(weights, results):
            want = left.float() @ w.float().t()
            assert (y.float() - want).norm() <= 1e-2 * want.norm()
            left = y


@torch.no_grad()
@pytest.mark.parametrize("graphs", [True, False])
def test_weights_that_change_between_calls_are_followed(graphs: bool):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
    ).to("cuda", torch.bfloat16)
    x = torch.randn(4, 1024, device="cuda", dtype=torch.bfloat16)
    fused = torchweld.fuse(model, (x,), **({} if graphs else {"cuda_graphs": False}))
    for step in range(30):
        for p in model.parameters():
            p.mul_(0.9).add_(0.01 * (step % 3))
        got, want = fused(x).clone(), model(x)
        assert (got - want).float().norm() <= 2e-2 * want.float().norm()
