"""Rows of lengths around a block of a sum, whose last piece may be shorter than a vector."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld

LENGTHS = [1025, 1037, 2049, 2079, 2081, 3073, 4100]
CASES = {
    "softmax": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum(1),
    "absolute mean": lambda x: x / x.abs().mean(1, keepdim=True),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_lengths_around_a_block(name, dynamic):
    function = CASES[name]
    torch.compiler.reset()
    fused = torchweld.fuse(lambda x: function(x), dynamic=dynamic)
    for length in LENGTHS if dynamic else LENGTHS[2:4]:
        x = torch.randn(3, length, generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(fused(x), function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [33, 64, 100, 500, 997, 1024])
def test_a_sum_beside_another_reduction_misses_no_element(length):
    """Reductions without lanes of their own end in a vector that overlaps the one before, in blocks
    too."""
    torch.compiler.reset()
    values = torch.randint(0, 100, (length,))
    fused = torchweld.fuse(lambda t: ((t < 0).any(), torch.where(t != -1, 1.0, 0.0).sum()))
    some, count = fused(values)
    assert (bool(some), float(count)) == (False, length)
