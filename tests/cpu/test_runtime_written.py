"""Inputs that a program writes to: batch statistics, counters, buffers of the user's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchweld
from torchweld.api import captured_graphs
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


def _counted(n, w):
    n += 1
    return w * n


def _read_before(x, w):
    y = w * x.exp()
    x.mul_(2)
    return y * x.sin()


def _copied_before(x, w):
    z = x.clone()
    x.add_(1)
    return w * z


def _partly_written(x, w):
    y = w * x[1].clone()[None]
    x[1] = 3
    x[2:4] += x[:2]
    return y + x * w


def _normalised(x, w):
    u = x.detach().clone()
    with torch.no_grad():
        x.copy_(x / x.norm())
    return w * u + w.sum() * x.sum().square()


_WRITES = _counted, _read_before, _copied_before, _partly_written, _normalised


@pytest.mark.parametrize("function", _WRITES)
def test_gradients_know_what_an_input_was_before_it_was_written_to(function):
    """torch.compile's backward (2.13) computes from the input again, which has changed by then."""
    torch.manual_seed(0)
    torch.compiler.reset()
    fused = torchweld.fuse(function)
    x = torch.tensor(0) if function is _counted else torch.rand(5, 5)
    other = x.clone()
    w = torch.rand(5, 5, requires_grad=True)
    for _ in range(2):
        ours, eager = fused(x, w), function(other, w)
        slopes = [torch.autograd.grad(y.sum(), w)[0] for y in (ours, eager)]
        torch.testing.assert_close((ours, slopes[0], x), (eager, slopes[1], other))


def test_statistics_are_not_held():
    """Nothing is copied of a written input that no gradient depends on."""
    torch.compiler.reset()
    fused = torchweld.fuse(nn.BatchNorm1d(6))
    fused(torch.randn(9, 6)).sum().backward()
    (captured,) = (c for c in captured_graphs(fused) if c.kind == "forward")
    assert not captured.module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.clone.default
    )
