import torch
import torch.nn as nn


class Model(nn.Module):
    """Slot attention with a hand-written GRU update; slots start from learned means."""

    def __init__(self, dim, slots, iters, hidden):
        super().__init__()
        self.iters, self.scale, self.eps = iters, dim ** -0.5, 1e-8
        self.mu = nn.Parameter(torch.randn(1, slots, dim) * 0.3)
        self.ni, self.ns, self.nm = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.wi = nn.Linear(dim, 3 * dim)
        self.wh = nn.Linear(dim, 3 * dim)
        self.m1 = nn.Linear(dim, hidden)
        self.m2 = nn.Linear(hidden, dim)

    def gru(self, x, h):
        ir, iz, inn = self.wi(x).chunk(3, -1)
        hr, hz, hn = self.wh(h).chunk(3, -1)
        r = torch.sigmoid(ir + hr)
        z = torch.sigmoid(iz + hz)
        n = torch.tanh(inn + r * hn)
        return (1 - z) * n + z * h

    def forward(self, inputs):
        b = inputs.shape[0]
        x = self.ni(inputs)
        k, v = self.k(x), self.v(x)
        slots = self.mu.expand(b, -1, -1)
        attn = None
        for _ in range(self.iters):
            prev = slots
            q = self.q(self.ns(slots))
            dots = torch.einsum("bid,bjd->bij", q, k) * self.scale
            attn = dots.softmax(dim=1) + self.eps
            w = attn / attn.sum(dim=-1, keepdim=True)
            upd = torch.einsum("bjd,bij->bid", v, w)
            slots = self.gru(upd, prev)
            slots = slots + self.m2(torch.relu(self.m1(self.nm(slots))))
        return slots, attn


def get_inputs():
    return [torch.randn(3, 289, 50)]


def get_init_inputs():
    return [50, 7, 5, 98]
