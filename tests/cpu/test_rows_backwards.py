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


def product(x, w):
    return (x.flip(-1) @ w).relu() * (x @ w).flip(-1)


def few_rows(x, w):
    return (x[:2] @ w.flip(-1)).exp() + w[:2].flip(-1)


def windows(x, w):
    image = x.flip(-1).reshape(1, 1, *x.shape)
    maxima = torch.nn.functional.max_pool2d(image, 3, 1, 1)
    window = w[:3, :3].flip(0, 1)[None, None]
    return maxima * torch.nn.functional.conv2d(image, window, padding=1).flip(-1)


def scores(x, w):
    return torch.softmax(x @ x.flip(-1).T - x[:, :1], -1) @ x.flip(0)


@pytest.mark.parametrize("function", [product, few_rows, windows, scores])
def test_with_products(function):
    torch.compiler.reset()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x, w = torch.randn(67, 35), torch.randn(35, 35)
        fused, exact = torchweld.fuse(function)(x, w), function(x.double(), w.double())
        torch.testing.assert_close(fused.double(), exact, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)
