"""Functions that compare what they compute again with elements chosen from memory: (function,
shapes of its arguments) by name. Each counts, in each row, elements that pass the test."""

from __future__ import annotations

import torch

K = 3


def squared_distances(q, s):
    return (q.unsqueeze(2) - s.unsqueeze(1)).square().sum(-1)


def nearest(q, s):
    """Points that are among the nearest of each query."""
    d = squared_distances(q, s)
    chosen = torch.topk(d, K, dim=2, largest=False).values
    return chosen, (d <= chosen[..., -1:]).sum(2)


def likeliest(x, y, w):
    """As top-k sampling keeps them."""
    z = x * w + y
    chosen = torch.topk(z, K, dim=-1).values
    return chosen, (torch.where(z < chosen[..., -1:], float("-inf"), z).softmax(-1) > 0).sum(-1)


def above_the_sorted(x, y, w):
    z = x * w + y
    chosen = z.sort(-1, descending=True).values[..., K - 1 : K]
    return chosen, (z >= chosen).sum(-1)


CASES = {
    "nearest": (nearest, ((2, 1001, 3), (2, 769, 3))),
    "likeliest": (likeliest, ((8, 1, 5000), (8, 50, 1), (5000,))),
    "sorted": (above_the_sorted, ((8, 1, 5000), (8, 50, 1), (5000,))),
}
