"""Gradients of what a product read transposed lie in memory as their tensor does
(capture/turned.py)."""

from __future__ import annotations

import pytest
import torch

import torchweld
from pairs import pairs


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.3, -1) @ v


def scores(q, k, v):
    return (q @ k.mT).sin(), v * 2


def shared(q, k, v):
    """The gradient of the transposed matrix goes to two tensors."""
    turned = k.mT + v.mT
    return torch.sin(q @ turned), turned.tanh()


def results(function, tensors):
    made = function(*tensors)
    made = made if isinstance(made, tuple) else (made,)
    loss = sum((torch.linspace(-1, 1, m.numel(), dtype=m.dtype).view_as(m) * m).sum() for m in made)
    return torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize(
    ("function", "rows", "batch"), pairs((attention, scores, shared), (1, 4), ((), (5,), (2, 3)))
)
def test_they_are_as_exact_as_eager(function, rows, batch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(*batch, n, 9, requires_grad=True) for n in (rows, 7, 7))
    exact = results(function, [t.detach().double().requires_grad_() for t in (q, k, v)])
    found = results(torchweld.fuse(function, dynamic=False), [q, k, v])
    for got, eager, true in zip(found, results(function, [q, k, v]), exact):
        error, allowed = ((t.double() - true).norm() for t in (got, eager))
        assert error <= 2 * allowed + 1e-6 * true.norm()


@pytest.mark.parametrize(
    ("function", "rows", "batch"), pairs((attention, scores), (1, 4), ((5,), (2, 3)))
)
def test_autograd_need_not_copy_them(function, rows, batch):
    tensors = [torch.randn(*batch, n, 8, requires_grad=True) for n in (rows, 6, 6)]
    found = results(torchweld.fuse(function, dynamic=False), tensors)
    assert [g.stride() for g in found] == [t.stride() for t in tensors]


def test_sizes_may_vary():
    made = torchweld.fuse(attention, dynamic=True)
    for rows in (3, 5):
        tensors = [torch.randn(2, 3, n, 8, requires_grad=True) for n in (rows, rows + 1, rows + 1)]
        torch.testing.assert_close(results(made, tensors), results(attention, tensors))
