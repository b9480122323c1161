"""Gradients of rows times the same rows in the other order: gcc 12 mixed up their addresses."""

from __future__ import annotations

import pytest
import torch

import torchweld


def centred(x):
    x = x - x.mean(-2, keepdim=True)
    return (x * x.flip(-1)).sum(-2, keepdim=True) - x


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(3, 65), (5, 130)])
def test_gradients(threads, shape):
    torch.compiler.reset()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weights = torch.randn(shape).t().requires_grad_(), torch.randn(shape).t()
        (ours,) = torch.autograd.grad(torchweld.fuse(centred)(x), x, weights)
        (eagers,) = torch.autograd.grad(centred(x), x, weights)
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)
