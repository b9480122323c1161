"""Mixtures of experts and loops of recurrent cells as plain code writes them, for tests and
benchmarks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    """A router, and the two products of `experts` gated experts of which each token takes `top`."""

    def __init__(self, hidden=32, inner=48, experts=6, top=2) -> None:
        super().__init__()
        self.experts, self.top = experts, top
        self.gate = nn.Linear(hidden, experts)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * inner, hidden) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, inner) * inner**-0.5)

    def route(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(self.top, -1)
        return weights / weights.sum(-1, keepdim=True), chosen

    def expert(self, e, x):
        gate, up = F.linear(x, self.gate_up[e]).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down[e])


class FixedLoop(Experts):
    """Over all experts; which tokens one has is found with torch.where."""

    def forward(self, x):
        weights, chosen = self.route(x)
        result, mask = torch.zeros_like(x), F.one_hot(chosen, self.experts).permute(2, 1, 0)
        for e in range(self.experts):
            position, token = torch.where(mask[e])
            made = self.expert(e, x[token]) * weights[token, position, None]
            result.index_add_(0, token, made)
        return result


class HitLoop(Experts):
    """Over the experts that some token has: data decides how often it runs."""

    def forward(self, x):
        weights, chosen = self.route(x)
        result, mask = torch.zeros_like(x), F.one_hot(chosen, self.experts).permute(2, 1, 0)
        for e in mask.sum((-1, -2)).nonzero()[:, 0]:
            position, token = torch.where(mask[e])
            made = self.expert(e, x[token]) * weights[token, position, None]
            result.index_add_(0, token, made)
        return result


class Masked(Experts):
    """All experts on all tokens, weighted by a one-hot mask."""

    def forward(self, x):
        weights, chosen = self.route(x)
        mask = x.new_zeros(x.shape[0], self.experts).scatter(1, chosen, weights)
        return sum(self.expert(e, x) * mask[:, e, None] for e in range(self.experts))


class Copied(Experts):
    """A copy of its experts' matrices for each token, multiplied in a batch."""

    def forward(self, x):
        weights, chosen = self.route(x)
        rows, ids = x.repeat_interleave(self.top, 0), chosen.reshape(-1)
        gate, up = torch.bmm(self.gate_up[ids], rows[:, :, None])[:, :, 0].chunk(2, -1)
        made = torch.bmm((F.silu(gate) * up)[:, None], self.down[ids].transpose(1, 2))[:, 0]
        return (made * weights.reshape(-1, 1)).view(*chosen.shape, -1).sum(1)


class Cells(nn.Module):
    """A hand-written loop of a cell, nn.LSTMCell or another of torch's, over x [batch, steps,
    inputs]; gives [batch, steps, size]."""

    def __init__(self, kind, inputs: int, size: int) -> None:
        super().__init__()
        self.cell, self.size = kind(inputs, size), size

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], self.size)
        made = []
        for t in range(x.shape[1]):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
            made.append(h)
        return torch.stack(made, 1)


class Handed(nn.Module):
    """An LSTM begins where another has ended; a layer reads both directions of a last state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.then = (nn.LSTM(inputs, width, batch_first=True) for _ in range(2))
        self.both = nn.LSTM(width, 5, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(10, 3)

    def forward(self, x):
        _, state = self.first(x)
        y, (h, _) = self.then(x, state)
        last = self.both(y)[1][0]
        ends = self.out(torch.cat([last[-2], last[-1]], 1))
        return torch.cat([ends, h.transpose(0, 1).reshape(len(x), -1)], 1)
