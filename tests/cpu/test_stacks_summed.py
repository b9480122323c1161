"""A stack that is summed along another axis: all parts at one point, with their sums."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.ir.nodes import Comp, Reduce


def parts(x, y, count):
    return torch.stack([(x * (k + 1)).sin() * y for k in range(count)])


def kernels(fused):
    return [n for r in torchweld.records(fused) for n in r.graph.nodes if isinstance(n, Comp)]


@pytest.mark.parametrize("count", [2, 5, 8, 9])
@pytest.mark.parametrize("size", [1, 7, 4099])
def test_with_their_sums(count, size):
    def function(x, y, weight):
        made = parts(x, y, count)
        return made, (made * weight).sum(1), (made - weight).amax(-1)

    torch.compiler.reset()
    x, y, weight = (torch.randn(size) for _ in range(3))
    fused = torchweld.fuse(function)
    made, exact = fused(x, y, weight), function(*(t.double() for t in (x, y, weight)))
    for ours, right in zip(made, exact):
        torch.testing.assert_close(ours, right.float(), rtol=2e-5, atol=2e-5)
    if count <= 8 and size > 1:
        (kernel,) = kernels(fused)
        assert sum(isinstance(i, Reduce) for i in kernel.body) == 2 * count


def test_rows_of_a_batch():
    def function(x, y):
        return parts(x, y, 3).mean(2)

    torch.compiler.reset()
    x, y = torch.randn(6, 513), torch.randn(6, 513)
    fused = torchweld.fuse(function)
    exact = function(x.double(), y.double()).float()
    torch.testing.assert_close(fused(x, y), exact, rtol=1e-5, atol=1e-6)


def test_what_is_read_along_the_stack_stays_rows():
    """Each row has a table of its own."""

    def function(x, y, table):
        return (parts(x, y, 4) * table).sum(1)

    torch.compiler.reset()
    x, y, table = torch.randn(700), torch.randn(700), torch.randn(4, 700)
    fused = torchweld.fuse(function)
    exact = function(x.double(), y.double(), table.double()).float()
    torch.testing.assert_close(fused(x, y, table), exact, rtol=1e-5, atol=1e-5)
