"""Sums by index: by atomics where eager has them, else in one order, the same each time. And
gradients of images that are made larger."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_triton_kernels import check

import runs_cases as cases
import torchweld
from triton_cases import Case, expected, tensors, title
from triton_run import compile_in_processes, gpu_starter, launches, prepare

SKEWED = torch.cat([torch.zeros(40000, dtype=torch.int64), cases.drawn(30000, 900)])
KERNELS = [
    *cases.ALL,
    cases.runs(SKEWED, 900, (1, 40), "bf16"),
    cases.runs(cases.drawn(3000, 33000), 33000, (3, 33)),
    cases.runs(cases.drawn(200000, 50), 50, (1, 1)),
    cases.runs(cases.drawn(100003, 7000), 7000, (1, 60), "bf16"),
    cases.runs(cases.drawn(300007, 20011), 20011, (1, 4)),
]


@pytest.fixture(scope="module")
def compiled() -> dict:
    return compile_in_processes([s for c in KERNELS for s in cases.bundle_of(c).sources])


def run(case: Case, compiled: dict) -> torch.Tensor:
    made, bundle = tensors(case, "cuda"), cases.bundle_of(case)
    prepare(case, bundle, made)
    launches(case, bundle, made, gpu_starter(compiled))
    return made["y"].cpu()


@pytest.mark.parametrize("case", KERNELS, ids=title)
def test_sums_of_runs(case: Case, compiled: dict):
    got = run(case, compiled)
    exact, eager = (expected(case, tensors(case), exact=e)["y"] for e in (True, False))
    check("y", case, got, eager, exact)
    assert torch.equal(run(case, compiled), got)


NODES, EDGES = 700, 20000


def wide(at, x):
    return at[:, None].expand(-1, x.shape[1])


# of x [NODES, 40], e [EDGES, 40], at [EDGES]
BY_ATOMICS = {
    "index_add": lambda x, e, at: (x * 2).index_add(0, at, e.sin(), alpha=0.5),
    "scatter_add": lambda x, e, at: torch.zeros_like(x).scatter_add(0, wide(at, x), e * e).tanh(),
    "scatter_reduce": lambda x, e, at: x.scatter_reduce(0, wide(at, x), e.cos(), "sum"),
    "means": lambda x, e, at: x.scatter_reduce(0, wide(at, x), e.cos(), "mean", include_self=False),
    "means with what is there": lambda x, e, at: x.scatter_reduce(0, wide(at, x), e.cos(), "mean"),
    "index_select": lambda x, e, at: x.sin().index_select(0, at) * e,
    "gather": lambda x, e, at: (x * 2).gather(0, wide(at, x)) * e,
}
IN_ORDER = {
    "index": lambda x, e, at: x.sin()[at] * e + x.cos()[at],
    "second dimension": lambda x, e, at: x.t().exp()[:, at] * e.t(),
    "embedding": lambda x, e, at: F.embedding(at, x, padding_idx=3) * e,
    "few rows of a few": lambda x, e, at: F.embedding(at[::9], x, padding_idx=3) * e[::9],
    "two indices": lambda x, e, at: x.sin().view(20, 35, 40)[at // 35, at % 35] * e,
    "sums of bags": lambda x, e, at: F.embedding_bag(at.view(-1, 5), x, mode="sum") * e[:4000],
    "means of rows": lambda x, e, at: F.embedding(at.view(-1, 8), x).mean(1) * e[:2500],
    "ones at indices": lambda x, e, at: F.one_hot(at, NODES).to(x.dtype) @ x * e,
    "one of each row": lambda x, e, at: e[torch.arange(EDGES, device=x.device), at % 40] * x.sum(),
    "rows of two": lambda x, e, at: F.embedding(at.view(2, -1), x).flatten(0, 1) * e,
}


def gradients(function, x, e, at) -> list[torch.Tensor]:
    x, e = x.clone().requires_grad_(), e.clone().requires_grad_()
    y = function(x, e, at)
    y.backward(torch.linspace(-1, 2, y.numel(), device="cuda").to(y.dtype).view_as(y))
    return [y.detach(), *(t.grad for t in (x, e) if t.grad is not None)]


def drawn(dtype) -> tuple:
    torch.manual_seed(0)
    at = torch.randint(0, NODES, (EDGES,), device="cuda")
    at[:5000] = 11
    x, e = (torch.randn(n, 40, device="cuda").to(dtype) for n in (NODES, EDGES))
    return x, e, at


def assert_as_exact(found, eager, exact) -> None:
    for mine, theirs, true in zip(found, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        off, usual = ((t.double() - true).norm() for t in (mine, theirs))
        assert off <= 1.5 * usual + 2 * torch.finfo(mine.dtype).eps * true.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*BY_ATOMICS, *IN_ORDER])
def test_sums_are_as_exact_as_eagers(name, dtype):
    torch.compiler.reset()
    function, (x, e, at) = (BY_ATOMICS | IN_ORDER)[name], drawn(dtype)
    fused = torchweld.fuse(function)
    found = [gradients(fused, x, e, at) for _ in range(4)]  # the later ones replay
    eager, exact = gradients(function, x, e, at), gradients(function, x.double(), e.double(), at)
    for each in found:
        assert_as_exact(each, eager, exact)
    if name in IN_ORDER:
        assert all(torch.equal(a, b) for each in found[1:] for a, b in zip(found[0], each))
    calls = {getattr(n, "target", "") for r in torchweld.records(fused) for n in r.graph.nodes}
    assert not any(w in c for c in calls for w in ("index_add", "scatter", "index_put", "backward"))


def test_the_user_may_ask_for_one_order():
    torch.compiler.reset()
    x, e, at = drawn(torch.float32)
    fused = torchweld.fuse(BY_ATOMICS["index_add"])
    fused(x, e, at)
    torch.use_deterministic_algorithms(True)
    try:
        found = [fused(x, e, at) for _ in range(4)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("mode", "factor"), [("bilinear", 2), ("bicubic", 2), ("nearest", 3)])
def test_gradients_of_larger_images(mode, factor, last, dtype):
    torch.compiler.reset()
    torch.manual_seed(0)
    x = torch.randn(3, 8, 13, 21, device="cuda").to(dtype)
    x = x.to(memory_format=torch.channels_last) if last else x

    def function(x, e, at):
        return F.interpolate(x.sin(), scale_factor=factor, mode=mode) * e

    e, fused = torch.randn(1, device="cuda").to(dtype), torchweld.fuse(function)
    found, eager = (gradients(f, x, e, None) for f in (fused, function))
    assert_as_exact(found, eager, gradients(function, x.double(), e.double(), None))
    calls = [getattr(n, "target", "") for r in torchweld.records(fused) for n in r.graph.nodes]
    assert not any("upsample" in c for c in calls)
