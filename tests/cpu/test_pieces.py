"""Graphs with operations that the IR has no place for: they run as they are, the rest is fused."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from applied import Apply
from torchweld.core import events
from torchweld.exact.verify import verify


@torch.library.custom_op("torchweld_tests::increment", mutates_args=("x",))
def increment(x: torch.Tensor) -> None:
    x.add_(1)


def selected(x):
    y = x.relu().tanh()
    return y[y > 0].exp().cumsum(0).cos().sum() + x.sin().mean()


def routed(x):
    result = torch.zeros_like(x)
    for expert in range(3):
        (rows,) = torch.where(x.argmax(1) % 3 == expert)
        result = result.index_add(0, rows, torch.tanh(x[rows] * (expert + 1)) @ x[:8])
    return result * 2


def chosen(x):
    x = x.exp() + 1
    return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (x,)).tanh() * 3


def incremented(x):
    y = x * 2 + 1
    increment(y)
    return y.cos() * 2


def solved(x):
    a = (x @ x.T).tanh() + 9 * torch.eye(x.shape[0])
    return torch.linalg.solve(a, x.sin() * 2).tanh() + 1


CASES = {
    "a size that depends on data": (selected, 2),
    "several": (routed, 2),
    "a number that depends on data": (lambda x: (x.exp() * x.sum().item() + 1).tanh(), 2),
    "higher-order": (chosen, 2),
    "an operation that writes": (incremented, 2),
    "complex numbers": (lambda x: ((torch.fft.fft(x.exp() * 2) ** 2j).abs() + 1).log(), 2),
    "a check": (solved, 1),
}


@pytest.mark.filterwarnings("ignore::torchweld.core.events.TorchweldWarning")
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_rest_is_fused(name, ahead):
    function, pieces = CASES[name]
    torch.compiler.reset()
    events.clear()
    model, x = Apply(function), torch.randn(11, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        fused = torchweld.fuse(model, x) if ahead else torchweld.fuse(model)
        report = verify(model, fused, x)
    assert report.ok, str(report)
    if ahead:  # torch.compile has graphs of its own where something depends on data
        assert len([r for r in torchweld.records(fused) if r.bundles]) >= pieces


def test_training(recwarn):
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(8, 8), Apply(solved), Apply(chosen))
    x = torch.randn(11, 8, generator=torch.Generator().manual_seed(0))
    report = verify(model, torchweld.fuse(model), x, train=True)
    assert report.ok, str(report)


SIZES = {
    "a part": lambda x: torch.tanh(x[: int(x.shape[0] * 0.7)]) * 2,
    "rounded up": lambda x: torch.tanh(x[: math.ceil(x.shape[0] / 4)]) * 2,
    "rounded": lambda x: torch.tanh(x[: round(x.shape[0] / 3)]) * 2,
    "a power": lambda x: torch.zeros(2 ** (x.shape[0] - 7)) + x.exp().sum(),
    "bits": lambda x: torch.tanh(x[: x.shape[0] & ~1]) * 2,
    "an image of half the size": lambda x: F.interpolate(x.sin()[None, None], scale_factor=0.5) * 2,
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_without_an_expression_are_computed_before(name):
    torch.compiler.reset()
    events.clear()
    function = SIZES[name]
    fused = torchweld.fuse(function, dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", events.TorchweldWarning)
        for rows in (9, 11, 10):
            x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))
            leaf, other = (x.clone().requires_grad_() for _ in range(2))
            result, expected = fused(leaf), function(other)
            torch.testing.assert_close(result, expected)
            result.sum().backward(), expected.sum().backward()
            torch.testing.assert_close(leaf.grad, other.grad)
    assert len(torchweld.api.records(fused)) == 2  # forward and backward


def test_code_that_dynamo_fails_with_is_cut_at_the_size(recwarn):
    """Torch 2.13 ends with an error where `combinations` selects, if such sizes are captured."""
    torch.compiler.reset()
    events.clear()

    def pairs(x):
        pair = torch.combinations(x[0] * 2, 2)
        return pair.diff(dim=1).exp().sum() + x.cos().sum()

    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    fused = torchweld.fuse(pairs)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), pairs(x))
    assert len(torchweld.records(fused)) == 2
    assert "cannot trace" not in "".join(str(w.message) for w in recwarn)
