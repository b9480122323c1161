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


def probability(x):
    return 0.5 * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def discretised(x, width):
    """The log probability of a bin of a normal distribution, as diffusion models write it."""
    inside = probability(x + width) - probability(x - width)
    return torch.log(inside.clamp(min=1e-12))


def test_errors_that_cancel_in_eager_cancel():
    """Far from zero, `1 + t` and the gradient's `1 - t * t` have lost the same digits of t: a sum
    that kept them would be divided by a product that did not. It was: 20 times eager's error."""
    x = -torch.linspace(3.0, 4.6, 4001)
    errors = []
    for function in (torchweld.fuse(discretised), discretised):
        at, width = x.clone().requires_grad_(), torch.full_like(x, 0.5).requires_grad_()
        (found,) = torch.autograd.grad(function(at, width).sum(), at)
        exact = x.double().requires_grad_()
        (right,) = torch.autograd.grad(discretised(exact, width.double()).sum(), exact)
        errors.append((found.double() - right).norm() / right.norm())
    assert errors[0] <= 1.5 * errors[1]
