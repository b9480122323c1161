"""Products of float32 however their factors lie in memory: kernels of ours, more exact than the
library's, some on copies of factors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.observe.measure.tracing import trace_steps


@pytest.fixture(autouse=True)
def anew():
    """Each size is compiled for itself."""
    torch.compiler.reset()


def plain(a, b):
    return a @ b


def left_turned(a, b):
    return a.mT.contiguous().mT @ b


def gradient_of_a_weight(a, b):
    return a.mT @ b


def both_turned(a, b):
    return a.mT @ b.mT


def with_neighbours(a, b):
    return F.gelu(a @ b) * torch.arange(b.shape[-1], device="cuda") + b.sum()


SHAPES = [(512, 256, 384), (1025, 512, 771), (640, 1021, 1026), (2051, 2949, 1111), (96, 3000, 200)]


def drawn(function, m: int, k: int, n: int, batch: tuple[int, ...]):
    turned = {left_turned: (0, 0), gradient_of_a_weight: (1, 0), both_turned: (1, 1)}
    shapes = (m, k), (k, n)
    found = [s[::-1] if t else s for s, t in zip(shapes, turned.get(function, (0, 0)))]
    return [torch.randn(*batch, *s, device="cuda") for s in found]


def error(found, right) -> float:
    return ((found.double() - right).norm() / right.norm()).item()


@pytest.mark.parametrize("function", [
    plain, left_turned, gradient_of_a_weight, both_turned, with_neighbours])  # fmt: skip
@pytest.mark.parametrize("m, k, n", SHAPES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_as_exact_as_eager_however_factors_lie(function, m, k, n, batch):
    torch.manual_seed(0)
    args = drawn(function, m, k, n, batch)
    fused = torchweld.fuse(lambda *args: function(*args))
    with torch.no_grad():
        right, theirs = function(*(x.double() for x in args)), function(*args)
        for _ in range(4):
            found = fused(*args)
            assert found.stride() == theirs.stride()
            assert error(found, right) <= 1.1 * error(theirs, right) + 1e-7


@pytest.mark.parametrize("function", [plain, gradient_of_a_weight, both_turned])
def test_large_products_are_not_the_librarys(function):
    args = drawn(function, 2048, 1024, 2048, ())
    fused = torchweld.fuse(lambda *args: function(*args))
    with torch.no_grad():
        for _ in range(3):
            fused(*args)
        (step,) = trace_steps(lambda: fused(*args), "cuda", 1).steps
    assert not any("gemm" in k.name or "cutlass" in k.name for k in step.kernels)


@pytest.mark.parametrize("m, k, n", [(512, 2048, 512), (256, 70000, 200), (1000, 1000, 1000)])
def test_programs_that_share_a_depth_agree_and_repeat(m, k, n):
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    fused = torchweld.fuse(lambda a, b: (a @ b).relu())
    with torch.no_grad():
        right, theirs = (a.double() @ b.double()).relu(), (a @ b).relu()
        found = [fused(a, b) for _ in range(4)]
        (step,) = trace_steps(lambda: fused(a, b), "cuda", 1).steps
    assert error(found[0], right) <= 1.1 * error(theirs, right)
    assert all(torch.equal(found[0], other) for other in found)
    assert not any("gemm" in k.name or "cutlass" in k.name for k in step.kernels)


def test_infinities_and_nan_stay_where_they_are():
    """Zeros behind an odd depth meet zeros alone."""
    a, b = torch.randn(2051, 2949, device="cuda"), torch.randn(2949, 1111, device="cuda")
    a[3, 2948], a[7, 5], b[2948, 9], b[0, 11] = float("inf"), float("nan"), -float("inf"), 3e38
    fused = torchweld.fuse(lambda a, b: a @ b)
    with torch.no_grad():
        found, theirs = fused(a, b), a @ b
    assert torch.equal(found.isnan(), theirs.isnan())
    assert torch.equal(found.isinf(), theirs.isinf())


def test_gradients_of_layers_are_as_exact():
    torch.manual_seed(0)
    layers = torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    net, x = torch.nn.Sequential(*layers).cuda(), torch.randn(2048, 512, device="cuda")
    g, fused = torch.randn(2048, 256, device="cuda"), torchweld.fuse(net)
    x.requires_grad_()
    wanted = [*net.parameters(), x]
    theirs = torch.autograd.grad(net(x), wanted, g)
    ours = torch.autograd.grad(fused(x), wanted, g)
    net.double()
    y = x.detach().double().requires_grad_()
    right = torch.autograd.grad(net(y), [*net.parameters(), y], g.double())
    for mine, eagers, best in zip(ours, theirs, right):
        assert error(mine, best) <= 1.1 * error(eagers, best) + 1e-7
