"""`memory_budget`: what a forward keeps for its backward, and what is computed again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.core.errors import UsageError
from torchweld.core.events import clear, events


class Block(nn.Module):
    """Attention by hand and an MLP with dropout, norms before them."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + torch.softmax(q @ k.mT / 4, -1) @ v
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.3, self.training)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(24), Block(24))


X = torch.randn(3, 37, 24, generator=torch.Generator().manual_seed(1))


def trained(model, budget):
    """(gradients as one vector, bytes kept) of a step whose dropout is that of any other budget."""
    fused = torchweld.fuse(model, memory_budget=budget)
    model.zero_grad()
    torch.manual_seed(5)
    fused(X).square().sum().backward()
    (forward,) = (g for g in torchweld.explain(fused).graphs if g.kind == "forward")
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    return gradients, sum(s.bytes * s.count for s in forward.saved), fused


@pytest.fixture(scope="module")
def usual(model):
    return trained(model, 1.0)


@pytest.mark.parametrize("budget", [0.5, 0.0, 60_000])
def test_less_is_kept_and_gradients_are_the_same(model, usual, budget):
    """A share of 0 keeps the seed of the dropout: torch's partitioner would draw it anew."""
    gradients, kept, _ = trained(model, budget)
    torch.testing.assert_close(gradients, usual[0], rtol=2e-5, atol=2e-5)
    assert kept < 0.8 * usual[1]
    assert budget <= 1 or kept <= budget


def test_room_for_all_changes_nothing(model, usual):
    gradients, kept, _ = trained(model, 10**9)
    assert kept == usual[1] and torch.equal(gradients, usual[0])


def test_a_budget_that_is_not_kept_is_told(model):
    clear()
    _, kept, _ = trained(model, 2)
    assert any(f"keeps {kept} bytes" in event.message for event in events())


def test_explain_names_what_is_kept(usual):
    text = str(torchweld.explain(usual[2]))
    assert "kept for the backward:" in text
    (forward,) = (g for g in torchweld.explain(usual[2]).graphs if g.kind == "forward")
    assert forward.saved == sorted(forward.saved, key=lambda s: -s.bytes * s.count)
    assert any(s.operation.source for s in forward.saved)
    others = (g for g in torchweld.explain(usual[2]).graphs if g.kind != "forward")
    assert not any(g.saved for g in others)


@pytest.mark.parametrize("budget", [-1, "half", True, None])
def test_nonsense_is_refused(model, budget):
    with pytest.raises(UsageError, match="memory_budget"):
        torchweld.fuse(model, memory_budget=budget)
