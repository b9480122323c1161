"""Recurrences: hundreds of operations that become one kernel are planned in seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lowered import lowered, run

from torchweld.core.options import Options
from torchweld.plan import evaluate, guess
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.targets.find import named_target


@pytest.fixture
def tried(monkeypatch):
    """The producers of which a merge was tried."""
    producers, merge = [], evaluate.merge

    def counted(producer, consumer, rules):
        producers.append(producer)
        return merge(producer, consumer, rules)

    monkeypatch.setattr(evaluate, "merge", counted)
    return producers


def weighted_means(keys, values, decay):
    """The mean of `values` by exp(`keys`) so far, with the largest exponent taken out."""
    numerator = denominator = torch.zeros_like(keys[0])
    most, total = torch.full_like(numerator, -1e9), 0.0
    for key, value in zip(keys, values):
        now = torch.maximum(most - decay.exp(), key)
        old, new = (most - decay.exp() - now).exp(), (key - now).exp()
        numerator, denominator = old * numerator + new * value, old * denominator + new
        total, most = total + (numerator / denominator).square().sum(), now
    return total


def lowered_gradient(steps: int):
    """Of `weighted_means`: a kernel that has dozens of neighbours until the end; and arguments."""
    args = [torch.randn(steps, 2, 8), torch.randn(steps, 2, 8), torch.randn(8)]
    return lowered(torch.func.grad(weighted_means, argnums=(0, 1, 2)), *args), args


def planned(graph):
    return plan(rewrite(graph), named_target("H100"), Options()).graph


def test_few_merges_are_tried(tried, monkeypatch):
    assert guess.LONG <= 64
    monkeypatch.setattr(guess, "LONG", 8)
    operations = lowered_gradient(3)[0].graph
    assert len(planned(operations).nodes) <= 4
    assert len(tried) < 4 * len(operations.nodes)  # 2; 12 without guesses, and 21 in 6 steps


def test_plans_with_guesses_mean_the_same(monkeypatch):
    monkeypatch.setattr(guess, "LONG", 8)
    result, args = lowered_gradient(2)
    guessed = replace(result, graph=planned(result.graph))
    torch.testing.assert_close(run(guessed, args, True), run(result, args, True))
