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
