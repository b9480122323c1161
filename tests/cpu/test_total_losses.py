"""Losses over everything that need statistics of rows: as exact as eager, and in two kernels."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.exact.budget import compare
from torchweld.exact.campaign.gates import opened

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


def test_a_distance_saves_its_inputs():
    """What it is the norm of is computed again: that was written, and read, in their place."""
    a, b, c = (torch.randn(33, 65, requires_grad=True) for _ in range(3))
    fused = torchweld.fuse(F.triplet_margin_loss)
    expected = F.triplet_margin_loss(a, b, c)
    got = fused(a, b, c)
    torch.testing.assert_close(got, expected)
    for ours, right in zip(*(torch.autograd.grad(y, (a, b, c)) for y in (got, expected))):
        torch.testing.assert_close(ours, right)
    forward = next(r for r in torchweld.records(fused) if r.kind == "forward")
    written = {n for node in forward.graph.nodes for n in node.writes}
    assert all(forward.graph.buffers[n].shape != (33, 65) for n in written)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [(), (9,)], ids=["a row", "rows"])
def test_labels_end_at_the_first_minus_one(rows, reduction):
    """torch.compile's parts of this loss (2.13) go on behind it, with class 0 as the label."""
    torch.manual_seed(0)
    torch.compiler.reset()
    x = torch.randn(*rows, 7, requires_grad=True)
    labels = torch.randint(-1, 7, (*rows, 7))
    loss = torch.nn.MultiLabelMarginLoss(reduction=reduction)

    def step(function, x):
        made = function(x, labels)
        (slope,) = torch.autograd.grad(made.sum(), x)
        return made, slope

    ahead = torchweld.fuse(loss, (x.detach(), labels))
    with torch.no_grad():
        assert compare("ahead", ahead(x, labels), loss(x, labels), loss(x.double(), labels)).ok
    wide = x.detach().double().requires_grad_()
    three = step(torchweld.fuse(loss), x), step(loss, x), step(loss, wide)
    for name, *which in zip(("loss", "gradient"), *three):
        assert compare(name, *which).ok


def test_a_gradient_that_comes_through_attention_is_none_of_a_loss():
    """A product of low rank, wider than its factors, has the form of logits; what is behind it
    makes several gradients at once. That ended in eager."""
    torch.manual_seed(0)
    torch.compiler.reset()
    x, a, b = (torch.randn(s, requires_grad=True) for s in ((2, 16, 64), (3, 64), (64, 3)))

    def loss(x, a, b):
        y = F.linear(x, b @ a).view(2, 16, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(y, y, y, is_causal=True).mean()

    fused = torchweld.fuse(loss)
    with opened(), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = torch.autograd.grad(fused(x, a, b), (x, a, b))
    assert [r.kind for r in torchweld.records(fused)] == ["forward", "backward"]
    for ours, right in zip(got, torch.autograd.grad(loss(x, a, b), (x, a, b)), strict=True):
        torch.testing.assert_close(ours, right)
