"""Circular padding, which is a concatenation: values, strides, gradients, number of kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld

SIDES = {
    "one": ((2, 5, 7), (3, 1)), "no batch": ((5, 7), (0, 7)), "two": ((2, 3, 5, 7), (2, 3, 1, 4)),
    "three": ((2, 3, 5, 4, 6), (1, 0, 2, 2, 0, 1)), "below zero": ((2, 3, 5, 7), (-1, 3, 1, -2)),
    "nothing": ((2, 3, 5, 7), (0, 0, 0, 0)), "left out": ((2, 3, 7), (-2, -1)),
}  # fmt: skip


def padded(x, sides):
    return F.pad(x, sides, mode="circular")


@pytest.mark.parametrize("name", SIDES)
def test_values_strides_and_gradients(name):
    torch.compiler.reset()
    torch.manual_seed(0)
    shape, sides = SIDES[name]
    x = torch.randn(shape, requires_grad=True)
    fused = torchweld.fuse(lambda x: padded(x, sides))
    ours, eager = fused(x), padded(x, sides)
    assert torch.equal(ours, eager) and ours.stride() == eager.stride()
    weight = torch.randn(eager.shape)
    slopes = [torch.autograd.grad(y, x, weight)[0] for y in (ours, eager)]
    torch.testing.assert_close(*slopes)


def test_channels_last_ahead_of_time_and_in_a_convolution():
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular").eval()
    x = torch.randn(2, 3, 7, 5).to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(torchweld.fuse(model, (x,))(x), model(x))
        fused = torchweld.fuse(lambda x: padded(x, (1, 2, 1, 1)))
        assert fused(x).stride() == padded(x, (1, 2, 1, 1)).stride()


def test_one_kernel():
    fused = torchweld.fuse(lambda x: padded(x.relu(), (1, 1, 2, 3)) * 2)
    with torch.no_grad():
        fused(torch.randn(2, 3, 8, 9))
    (record,) = torchweld.records(fused)
    assert len(record.graph.nodes) == 1


@pytest.mark.parametrize("sides", [(6, 0), (0, 6), (-6, 1)])
def test_more_than_once_around_is_torchs_answer(sides):
    torch.compiler.reset()
    x = torch.randn(2, 3, 5)
    fused = torchweld.fuse(lambda x: padded(x, sides))
    try:
        wanted = padded(x, sides)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            fused(x)
    else:
        torch.testing.assert_close(fused(x), wanted)


def test_short_sides_are_copied_and_then_computed_with_the_rest():
    """Loops of three elements would be computed one by one."""
    torch.compiler.reset()
    x = torch.randn(40, 3, 57)

    def function(x):
        return torch.cat([x[..., -3:], x, x[..., :2]], -1).sin()

    fused = torchweld.fuse(function)
    torch.testing.assert_close(fused(x), function(x), rtol=1e-6, atol=1e-6)
    texts = [s.text for r in torchweld.api.records(fused) for b in r.bundles.values()
             for s in b.sources]  # fmt: skip
    part = "".join(texts).split("static void part")[1]
    assert part.count("tw_sin(") == 2  # whole vectors, and one that overlaps the last of them
