"""Elements that a mask selects: pointwise work on them, what is written back, sums and means."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.ir.nodes import Comp


def scaled(x, m):
    y = x.clone()
    y[m] *= 2
    y[x < 0] = x[x < 0].exp()
    return y


def logarithms(x, m):
    """Not a number where nothing is selected, in the gradient too."""
    positive = x > 0
    out = torch.zeros_like(x)
    out[positive] = x[positive].log() + x[positive].sqrt()
    return out, out[m & positive].sum()


def losses(x, m):
    each = F.smooth_l1_loss(x, x.flip(0).detach(), reduction="none")
    return each[m].mean() + (x[m] - 3).abs().sum() / m.sum()


def one_mask_of_another(x, m):
    y = x * 3
    y[m] = torch.where(x[m] > 0, y[m], -y[m] + 1)
    return y, (y[m] * x[m]).sum()


def rows(x, m):
    """A mask of the first dimension."""
    first = m[:, 0]
    y = x.clone()
    y[first] = y[first].tanh() * 2
    return y, y[first].mean()


def written_back(x, m):
    target = x * 1
    target[m] += x[m].sin()
    return target


FUNCTIONS = [scaled, logarithms, losses, one_mask_of_another, rows, written_back]


def results(made):
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("grad", [False, True])
def test_as_eager_in_one_graph(function, share, grad):
    torch.compiler.reset()
    torch.manual_seed(3)
    x, m = torch.randn(9, 13), torch.rand(9, 13) < share
    x[0, 0], m[0, 0] = float("nan"), False
    x.requires_grad_(grad)
    fused = torchweld.fuse(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        made = results(fused(x, m))
        expected = results(function(x, m))
        for ours, eager in zip(made, expected):
            torch.testing.assert_close(ours, eager, equal_nan=True)
        if grad:
            sums = [sum(y.nan_to_num().sum() for y in each) for each in (made, expected)]
            ours, eager = (torch.autograd.grad(s, x)[0] for s in sums)
            torch.testing.assert_close(ours, eager, equal_nan=True)
    assert len(torchweld.records(fused)) == 1 + grad
    assert all(isinstance(n, Comp) for r in torchweld.records(fused) for n in r.graph.nodes)


def test_ahead_of_time_and_in_sixteen_bits():
    class Model(torch.nn.Module):
        def forward(self, x, m):
            return x[m].mean(), (x[m] * 2).sum(), scaled(x, m)

    x, m = torch.randn(40, 50).bfloat16(), torch.rand(40, 50) < 0.5
    fused = torchweld.fuse(Model(), (x, m))
    with torch.no_grad():
        for ours, eager in zip(fused(x, m), Model()(x, m)):
            torch.testing.assert_close(ours, eager)
    assert len(torchweld.records(fused)) == 1


def kept(x, m):
    """What needs their number, or order: selected as before."""
    some = x[m]
    return some, some.std(), some.sort().values, some.cumsum(0), (some * 2).sum()


def integers(x, m):
    """A quotient by zero is never taken."""
    n = (x * 3).long()
    out = n.clone()
    out[n != 0] = 100 // n[n != 0]
    out[m] += n[m] * 2
    return out, n[m].sum()


def of_several_ranks(x, m):
    """Broadcast along what the mask left, not along the mask."""
    rows, tables = m[0], torch.stack([x.t(), x.t() * 2], -1)
    return x[m].sum() + tables[rows].sum(), tables[rows] * x[0][rows][:, None, None], x[0][rows] + 1


@pytest.mark.parametrize("function", [kept, integers, of_several_ranks])
@pytest.mark.filterwarnings("ignore::torchweld.TorchweldWarning")
def test_what_else_is_done_with_them(function):
    torch.compiler.reset()
    x, m = torch.randn(6, 7), torch.rand(6, 7) < 0.5
    fused = torchweld.fuse(function)
    for ours, eager in zip(fused(x, m), function(x, m)):
        torch.testing.assert_close(ours, eager)
