"""Average pooling and its gradient are kernels (capture/pools.py, capture/pool_gradients.py)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from pairs import pairs

POOLS = {
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x.sin(), (3, 2)), True),
    "adaptive, same size": (lambda x: F.adaptive_avg_pool2d(x.sin(), (12, 10)), True),
    "adaptive, uneven": (lambda x: F.adaptive_avg_pool2d(x.sin(), (5, 2)), False),
    "side by side": (lambda x: F.avg_pool2d(x.sin(), (4, 5)), True),
    "in one direction": (lambda x: F.avg_pool1d(x.sin().flatten(0, 1), 2), True),
    "overlapping": (lambda x: F.avg_pool2d(x.sin(), 4, 2), True),
    "padded": (lambda x: F.avg_pool2d(x.sin(), 2, 2, 1), True),
    "rest left out": (lambda x: F.avg_pool2d(x.sin(), 7), True),
    "other divisor": (lambda x: F.avg_pool2d(x.sin(), 2, divisor_override=3), True),
}


@pytest.mark.parametrize(
    ("name", "dtype", "last"), pairs(POOLS, (torch.float32, torch.bfloat16), (False, True))
)
def test_results_and_gradients_are_eagers(name, dtype, last):
    """`last`: channels are."""
    torch.manual_seed(0)
    model, apart = POOLS[name]
    x = torch.randn(2, 3, 12, 10, dtype=dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    made = torchweld.fuse(model)
    expected, result = model(x), made(x)
    assert result.stride() == expected.stride()
    exact_x = x.detach().double().requires_grad_()
    exact, weights = model(exact_x), torch.randn_like(expected)
    (true,) = torch.autograd.grad(exact, exact_x, weights.double())
    eager, ours = (torch.autograd.grad(y, x, weights)[0] for y in (expected, result))
    assert ours.stride() == eager.stride()
    eps = torch.finfo(dtype).eps
    for got, other, right in ((result, expected, exact), (ours, eager, true)):
        error, allowed = ((t.double() - right).norm() for t in (got, other))
        assert error <= 1.5 * allowed + eps * right.norm() / 2
    called = [getattr(n, "target", "") for n in torchweld.records(made)[-1].graph.nodes]
    assert any("pool" in c for c in called) != apart, called
