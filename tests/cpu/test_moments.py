"""Means and variances of hard rows: equal values, large ones, offsets beyond the spread."""

from __future__ import annotations

import pytest
import torch

import torchweld

ROWS = {
    "equal": torch.full((3, 33), 0.1),
    "large": torch.full((3, 33), 1e24),
    "denormal": torch.full((3, 33), 1e-40),
    "offset": 1e4 + torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dim", [0, 1], ids=["first", "last"])
def test_moments(name, dim):
    torch._dynamo.reset()
    x = ROWS[name].movedim(1, dim).contiguous()
    variance, mean = torchweld.fuse(lambda x: torch.var_mean(x, dim))(x)
    exact_variance, exact_mean = torch.var_mean(x.double(), dim)
    torch.testing.assert_close(mean.double(), exact_mean, rtol=1.2e-7, atol=0)
    torch.testing.assert_close(variance.double(), exact_variance, rtol=1e-6, atol=0)


def test_the_mean_of_many_values_around_zero():
    """As exact as eager's, which is a sum in float64: a correction of 1e-8 would be most of it."""
    torch._dynamo.reset()
    x = 0.6 * torch.randn(50000, 3, generator=torch.Generator().manual_seed(0)).T.contiguous()
    _, mean = torchweld.fuse(lambda x: torch.var_mean(x, 1))(x)
    torch.testing.assert_close(mean.double(), x.double().mean(1), rtol=2e-7, atol=0)


# Rows that end chains of additions in every way: one after another, in vectors, in short runs.
FAR_OFF = {
    "columns": (lambda: torch.randn(128, 33), 0),
    "many columns": (lambda: torch.randn(1000, 16), 0),
    "rows": (lambda: torch.randn(64, 2000), 1),
    "short runs": (lambda: torch.randn(8, 128, 8, 16)[..., :9], (1, 3)),
    "longer runs": (lambda: torch.randn(8, 40, 8, 50)[..., :33], (1, 3)),
}


@pytest.mark.parametrize("name", FAR_OFF)
def test_moments_of_far_off_values_are_as_exact_as_eagers(name):
    """Long chains of float32 additions lose digits of the mean, and round squares down: the squares
    of numbers that have few bits left."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, dim = FAR_OFF[name]
    fused = torchweld.fuse(lambda x: moments(x, dim))
    for offset in (1e3, 1e4, 1e6):
        errors = [differences(offset + make(), dim, fused) for _ in range(4)]
        eager, ours = torch.tensor(errors).square().mean(0).sqrt().unbind(0)
        assert (ours <= 1.5 * eager + 6e-8).all(), (offset, eager, ours)


def moments(x, dim):
    """Variance, mean and the variance's gradient."""
    x = x.detach().requires_grad_()
    variance, mean = torch.var_mean(x, dim)
    (gradient,) = torch.autograd.grad((variance * variance.detach()).sum(), x)
    return variance.detach(), mean.detach(), gradient


def differences(x, dim, fused):
    """Relative errors against float64, of eager and of what is fused."""
    exact = moments(x.double(), dim)

    def of(found):
        pairs = zip(found, exact)
        return [float((a.double() - b).norm() / b.norm()) for a, b in pairs]

    return of(moments(x, dim)), of(fused(x))


def test_sums_in_short_runs_are_as_exact_as_eagers():
    """Runs of nine elements, with gaps between: no vectors, and no chain through all of them."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    fused = torchweld.fuse(lambda x: x.sum((1, 3)))
    for _ in range(3):
        x = 0.5 + torch.rand(8, 128, 8, 16)[..., :9]
        exact = x.double().sum((1, 3))
        ours, eager = ((y - exact).norm() / exact.norm() for y in (fused(x), x.sum((1, 3))))
        assert ours <= 1.5 * eager + 6e-8
