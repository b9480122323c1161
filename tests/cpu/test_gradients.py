"""Gradients as exact as eager's, where what torch takes apart is not, and rounded where the user
asked for it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.exact.budget import compare


def gradient(function, x: torch.Tensor) -> torch.Tensor:
    """Of a fixed combination of what the function gives."""
    x = x.detach().requires_grad_()
    y = function(x)
    weights = torch.arange(y.numel(), dtype=torch.float64).mul(1.7).cos().view(y.shape)
    return torch.autograd.grad(y, x, weights.to(y.dtype))[0]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_soft_margin_of_large_arguments(reduction):
    torch.compiler.reset()
    x = torch.rand(64, 33) * 40 + 20

    def loss(x):
        return F.soft_margin_loss(x, torch.ones_like(x), reduction=reduction)

    found = gradient(torchweld.fuse(loss), x)
    error = compare("x", found, gradient(loss, x), gradient(loss, x.double()))
    assert error.ok, error


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_smooth_l1_keeps_nan(beta, dtype):
    torch.compiler.reset()
    x = torch.tensor([math.nan, math.inf, -math.inf, 0, 0.2, -0.5, 1, -3] * 4, dtype=dtype)

    def loss(x):
        return F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=beta)

    found, eager = gradient(torchweld.fuse(loss), x), gradient(loss, x)
    torch.testing.assert_close(found, eager, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda h: h * 1.37,
        lambda h: h.exp().sum(-1),
        lambda h: h.exp() + h * 0.3,
        lambda h: (h * h).float(),
    ],
    ids=["product", "sum", "two uses", "back"],
)
def test_a_gradient_is_rounded_where_the_user_casts(function, dtype):
    torch.compiler.reset()
    x = torch.randn(64, 33)
    found = gradient(torchweld.fuse(lambda x: function(x.to(dtype))), x)
    eager = gradient(lambda x: function(x.to(dtype)), x)
    assert torch.equal(found, found.to(dtype).float())
    torch.testing.assert_close(found, eager, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
