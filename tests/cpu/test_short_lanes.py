"""Rows of a few elements along several axes: B-spline bases, a table for each feature."""

from __future__ import annotations

import pytest
import torch

import torchweld


def bases(x, grid):
    """One step of de Boor's recursion over [.., features, knots]."""
    x = x.unsqueeze(-1)
    b = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
    left = (x - grid[:, :-2]) / (grid[:, 1:-1] - grid[:, :-2])
    right = (grid[:, 2:] - x) / (grid[:, 2:] - grid[:, 1:-1])
    return left * b[..., :-1] + right * b[..., 1:], (x + grid[:, 1:]).exp()


@pytest.mark.parametrize("knots", [5, 6, 8, 10, 11])
@pytest.mark.parametrize("shape", [(3, 7), (300, 38), (2, 700), (1, 1), (5, 513), (2, 90, 6)])
def test_as_eager(shape, knots):
    torch.compiler.reset()
    grid = torch.linspace(-2, 2, knots) + torch.rand(shape[-1], 1) / 9
    x = torch.rand(shape) * 3 - 1.5
    for ours, eager in zip(torchweld.fuse(bases)(x, grid), bases(x, grid)):
        torch.testing.assert_close(ours, eager)
