"""Gradients of running products: eager's, in as many operations for any length
(capture/running_products.py)."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.capture import running_products
from torchweld.ir.nodes import Comp

ZEROS = {
    "none": [], "first": [0], "last": [8], "one": [4], "neighbours": [3, 4], "three": [1, 4, 7]
}  # fmt: skip


def _gradients(function, x, dim):
    y = function(x, dim)
    torch.manual_seed(1)
    return torch.autograd.grad(y, x, torch.randn_like(y))[0]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("zeros", ZEROS.values(), ids=ZEROS)
def test_the_gradient_is_eagers(zeros, dim):
    torch.manual_seed(0)
    x = torch.randn(9, 9, 9, dtype=torch.float64)
    x.select(dim, 0)[0, 0] = 0.0  # so that rows differ
    for k in zeros:
        x.select(dim, k)[:5] = 0.0
    x.requires_grad_()
    expected = _gradients(torch.cumprod, x, dim)
    torch.testing.assert_close(_gradients(running_products.cumprod, x, dim), expected)


def test_what_has_no_such_gradient_is_left():
    with torch.no_grad():
        assert torch.equal(running_products.cumprod(torch.arange(3), 0), torch.tensor([0, 0, 0]))
        wide = running_products.cumprod(torch.tensor([2, 3]), dim=0, dtype=torch.float64)
    assert wide.dtype == torch.float64 and wide.tolist() == [2, 6]
    x = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    torch.testing.assert_close(
        _gradients(running_products.cumprod, x, 0), _gradients(torch.cumprod, x, 0)
    )


@pytest.mark.parametrize("length", [30, 300])
def test_kernels_of_any_length(length):
    """Torch's own graph has an element left out of a product for each place."""

    def model(x):
        return (1 + 0.01 * x).cumprod(dim=1, dtype=torch.float32).sin()

    torch.manual_seed(0)
    x = torch.randn(4, length, requires_grad=True)
    made = torchweld.fuse(model)
    expected, result = model(x), made(x)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad(y, x, weights)[0] for y in (expected, result)]
    torch.testing.assert_close(gradients[1], gradients[0])
    backward = torchweld.records(made)[-1].graph
    assert len(backward.nodes) <= 4 and all(isinstance(n, Comp) for n in backward.nodes)
