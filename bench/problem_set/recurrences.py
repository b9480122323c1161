"""Scans along a dimension, and networks that step through time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.core import function, net, problem_of

problem = problem_of("recurrences")


@problem
def cumsum_reverse(scale):
    x = torch.randn(128 * scale, 4000)
    return function(lambda x: torch.flip(torch.cumsum(torch.flip(x, [1]), 1), [1])), [x]


@problem
def cumsum_exclusive(scale):
    def forward(self, x):
        first = torch.zeros_like(x.select(1, 0).unsqueeze(1))
        return torch.cumsum(torch.cat((first, x), dim=1), dim=1)[:, :-1]

    return net(forward), [torch.randn(128 * scale, 4000)]


@problem
def cumsum_masked(scale):
    shape = 128 * scale, 4000
    call = function(lambda x, mask: torch.cumsum(x * mask, 1))
    return call, [torch.randn(shape), torch.rand(shape) > 0.5]


@problem
def cumulative_product(scale):
    return function(lambda x: torch.cumprod(x, 1)), [1 + 0.01 * torch.randn(128 * scale, 4000)]


@problem
def rnn_step(scale):
    def forward(self, x, state):
        return self.out(torch.tanh(self.hidden(torch.cat((x, state), 1))))

    parts = dict(hidden=nn.Linear(256 + 512, 512), out=nn.Linear(512, 64))
    return net(forward, **parts), [torch.randn(64 * scale, 256), torch.randn(64 * scale, 512)]


@problem
def lstm(scale):
    def forward(self, x):
        return self.out(self.layers(x)[0][:, -1])

    parts = dict(layers=nn.LSTM(128, 128, 2, batch_first=True), out=nn.Linear(128, 10))
    return net(forward, **parts), [torch.randn(16 * scale, 64, 128)]


@problem
def gru_both_ways(scale):
    def forward(self, x, state):
        found, last = self.layers(x, state)
        return found, last

    layers = nn.GRU(64, 96, 2, bidirectional=True)
    state = torch.randn(4, 8 * scale, 96)
    return net(forward, layers=layers), [torch.randn(48, 8 * scale, 64), state]


@problem(scale=1)
def state_space_chunks(scale):
    """Mamba 2: a scan by chunks of 32 (the minimal form of Dao and Gu, 2024)."""

    def decay(x):
        """exp of the sums over each later interval; zero above the diagonal."""
        total = torch.cumsum(x, -1)
        sums = total[..., :, None] - total[..., None, :]
        kept = torch.tril(torch.ones(sums.shape[-2:], dtype=torch.bool, device=x.device))
        return sums.masked_fill(~kept, -torch.inf).exp()

    def chunks(t):
        return t.unflatten(1, (-1, 32))

    def forward(self, x, a, b, c):
        x, a, b, c = map(chunks, (x, a, b, c))
        a = a.permute(0, 3, 1, 2)
        sums = torch.cumsum(a, -1)
        within = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, decay(a), x)
        left = torch.exp(sums[..., -1:] - sums)
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, left, x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        across = decay(F.pad(sums[..., -1], (1, 0)))
        states = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]
        return within + torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, torch.exp(sums))

    rows = 4 * scale, 128, 8
    b, c = (torch.randn(*rows, 16) for _ in range(2))
    return net(forward), [torch.randn(*rows, 64), -torch.rand(rows), b, c]
