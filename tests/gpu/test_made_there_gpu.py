"""What a model makes from nothing on the CPU, and copies to the GPU, is made there: the graph is
replayed."""

from __future__ import annotations

import math

import pytest
import torch

import torchweld


def frequencies(t, half=33):
    """As diffusion models write them."""
    f = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
    a = t[:, None].float() * f.to(device=t.device)[None]
    return torch.cat([a.cos(), a.sin()], -1)


def masked(x):
    mask = torch.ones(x.shape[-1], x.shape[-1]).tril().bool().to(x.device)
    return (x @ x.mT).masked_fill(~mask, -1e9).softmax(-1)


@pytest.mark.parametrize("function,given", [
    (frequencies, lambda: torch.rand(7, device="cuda") * 3),
    (masked, lambda: torch.randn(2, 19, 19, device="cuda")),
])  # fmt: skip
def test_nothing_runs_on_the_cpu(function, given):
    torch._dynamo.reset()
    x = given()
    fused = torchweld.fuse(function)
    with torch.no_grad():
        for _ in range(3):
            found = fused(x)
        eager, wanted = function(x), function(x.double())
    (record,) = torchweld.records(fused)
    assert {b.device for b in record.graph.buffers.values()} == {"cuda:0"}
    ours, theirs = ((t.double() - wanted).norm() / wanted.norm() for t in (found, eager))
    assert ours <= 2 * theirs + 1e-6
