"""Inputs that a program writes to: batch statistics, counters, buffers of the user's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchweld
from torchweld.ir.nodes import Extern

pytestmark = pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning")


@pytest.mark.parametrize("shape", [(4, 8, 9, 9), (64, 3, 17, 5), (2, 33, 1, 1), (3, 16, 31, 33)])
def test_batch_statistics(shape):
    torch.manual_seed(0)
    eager = nn.Sequential(nn.BatchNorm2d(shape[1]), nn.ReLU()).train()
    own = copy.deepcopy(eager)
    fused = torchweld.fuse(own)
    for _ in range(3):
        x = torch.randn(shape) * 2 + 1
        versions = [b._version for b in own.buffers()]
        torch.testing.assert_close(fused(x), eager(x), rtol=1e-4, atol=1e-5)
        assert all(b._version > v for b, v in zip(own.buffers(), versions))
    for ours, theirs in zip(own.buffers(), eager.buffers()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    nodes = [n for record in torchweld.records(fused) for n in record.graph.nodes]
    assert not any(isinstance(n, Extern) for n in nodes)


class Swaps(nn.Module):
    """Each buffer becomes a function of the old values of both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.arange(6.0).reshape(2, 3))
        self.register_buffer("b", torch.arange(6.0).reshape(2, 3) * 10)

    def forward(self, x):
        before = self.a.clone()
        self.a.copy_(self.b + x)
        self.b.copy_(before)
        self.b[1].add_(x[0])
        return before * 2, self.a.sum(), self.b.flip(0)


def test_reads_come_before_writes():
    eager = Swaps()
    own = copy.deepcopy(eager)
    fused = torchweld.fuse(own)
    with torch.no_grad():
        for step in range(3):
            x = torch.full((2, 3), float(step))
            torch.testing.assert_close(fused(x), eager(x))
            torch.testing.assert_close(own.state_dict(), eager.state_dict())
