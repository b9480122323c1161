"""Functions that compare what they compute again with elements chosen from memory: (function,
shapes of its arguments) by name. Each counts, in each row, elements that pass the test."""

from __future__ import annotations

from functools import partial

import torch


def squared_distances(q, s):
    return (q.unsqueeze(2) - s.unsqueeze(1)).square().sum(-1)


def nearest(q, s, k: int):
    """Points that are among the nearest of each query."""
    d = squared_distances(q, s)
    chosen = torch.topk(d, k, dim=2, largest=False).values
    return chosen, (d <= chosen[..., -1:]).sum(2)


def likeliest(x, y, w, k: int):
    """As top-k sampling keeps them."""
    z = x * w + y
    chosen = torch.topk(z, k, dim=-1).values
    return chosen, (torch.where(z < chosen[..., -1:], float("-inf"), z).softmax(-1) > 0).sum(-1)


def above_the_sorted(x, y, w, k: int):
    z = x * w + y
    chosen = z.sort(-1, descending=True).values[..., k - 1 : k]
    return chosen, (z >= chosen).sum(-1)


_DISTANCES, _SCORES = ((2, 1001, 3), (2, 769, 3)), ((8, 1, 5000), (8, 50, 1), (5000,))
# A few are found by a kernel of ours, many and all by the library.
FEW, MANY = 3, 40
CASES = {
    "nearest": (partial(nearest, k=FEW), _DISTANCES),
    "likeliest": (partial(likeliest, k=FEW), _SCORES),
    "many nearest": (partial(nearest, k=MANY), _DISTANCES),
    "many likeliest": (partial(likeliest, k=MANY), _SCORES),
    "sorted": (partial(above_the_sorted, k=FEW), _SCORES),
}
