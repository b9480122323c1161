"""Losses over everything that need statistics of rows: as exact as eager, and in two kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld

LOSSES = {
    "kl": lambda x: F.kl_div(
        x.log_softmax(1), x.roll(1, 0).softmax(1), reduction="batchmean"
    ),
    "entropy": lambda x: -(x.softmax(1) * x.log_softmax(1)).mean(),
    "cross entropy": lambda x: -((x - x.logsumexp(1, keepdim=True)) * x.flip(0).softmax(1)).sum(),
    "far from zero": lambda x: ((x + 1000) - (x + 1000).mean(1, keepdim=True)).square().sum(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, dtype):
    torch.compiler.reset()
    torch.manual_seed(0)
    x = (torch.randn(96, 700) * 3).to(dtype)
    fused = torchweld.fuse(lambda x: LOSSES[name](x))
    result, eager, exact = fused(x), LOSSES[name](x), LOSSES[name](x.double())
    near = torch.finfo(dtype).eps * exact.abs()
    assert (result - exact).abs() <= 1.5 * (eager - exact).abs() + 2 * near
    (record,) = torchweld.api.records(fused)
    assert len(record.bundles) == 2


def test_gradients_and_what_is_not_finite():
    torch.compiler.reset()
    loss = LOSSES["entropy"]
    fused = torchweld.fuse(lambda x: loss(x))
    x = torch.randn(32, 600, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    fused(x).backward()
    loss(y).backward()
    torch.testing.assert_close(x.grad, y.grad)
    with torch.no_grad():
        for odd in (torch.nan, torch.inf):
            x[3, 5] = odd
            assert fused(x).isnan()
