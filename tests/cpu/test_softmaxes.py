"""A softmax written by hand is one, with the gradient of one; what only looks like it stays."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.capture import aot, softmaxes
from torchweld.exact.verify import verify
from torchweld.ir.nodes import Comp
from torchweld.templates.attention.nest import nest_of


def by_hand(x):
    e = (x - x.max(-1, keepdim=True)[0]).exp()
    return e / e.sum(-1, keepdim=True)


def by_functions(x):
    e = torch.exp(x - torch.amax(x, dim=(1,), keepdim=True).detach())
    return torch.div(e, torch.sum(e, 1, True))


def shifted(x):
    return F.softmax(x - x.amax(-1, keepdim=True), dim=2)


def shifted_logarithm(x):
    return (x - torch.max(x, -1, keepdim=True).values).log_softmax(-1)


def of_another_maximum(x):
    e = (x - x.amax()).exp()
    return e / e.sum(-1, keepdim=True)


def along_two_dimensions(x):
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def of_a_larger_sum(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / (e.sum(-1, keepdim=True) + 1e-6)


def returned_too(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True), e * 2


def written_between(x):
    e = x - x.amax(-1, keepdim=True)
    e[0, 0, 0] += 1
    e = e.exp()
    return e / e.sum(-1, keepdim=True)


def shifted_along_another(x):
    return F.softmax(x - x.amax(1, keepdim=True), dim=-1)


FOUND = by_hand, by_functions, shifted, shifted_logarithm
OTHERS = (
    of_another_maximum, along_two_dimensions, of_a_larger_sum, returned_too, written_between,
    shifted_along_another,
)  # fmt: skip


@pytest.fixture
def counted(monkeypatch):
    """How many each graph had."""
    counts, say = [], softmaxes.say_softmax
    monkeypatch.setattr(aot.softmaxes, "say_softmax", lambda gm: counts.append(say(gm)))
    return counts


@pytest.mark.parametrize("function", [*FOUND, *OTHERS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_exact_as_eager(function, dtype, counted):
    torch.manual_seed(0)
    x = (torch.randn(3, 7, 13) * 3).to(dtype)
    assert verify(function, torchweld.fuse(function), (x,), train=True).ok
    assert counted and set(counted) == {int(function in FOUND)}


def test_rows_without_numbers(counted):
    x = torch.randn(5, 6)
    x[0], x[1, 2], x[2, 3], x[3, 0] = -torch.inf, torch.inf, torch.nan, -torch.inf
    torch.testing.assert_close(torchweld.fuse(by_hand)(x), by_hand(x), equal_nan=True)
    assert set(counted) <= {1}


def test_rounded_as_written_if_asked(counted):
    x = torch.randn(3, 7, 13).bfloat16()
    torchweld.fuse(by_hand, numerics="eager")(x.requires_grad_())
    assert not counted


@pytest.mark.usefixtures("scores_in_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_keeps_no_scores_in_training(dtype):
    torch.manual_seed(0)
    args = [torch.randn(2, 4, 96, 32).to(dtype).requires_grad_() for _ in range(3)]
    fused = torchweld.fuse(lambda q, k, v: by_hand(q @ k.mT * 0.2) @ v)
    fused(*args).sum().backward()
    nests = {r.kind: sum(isinstance(n, Comp) and nest_of(n) is not None for n in r.graph.nodes)
             for r in torchweld.api.records(fused)}  # fmt: skip
    assert nests == {"forward": 1, "backward": 2}
