import torch
import torch.nn as nn


class Model(nn.Module):
    """Slot attention: softmax over slots, weighted mean over tokens, GRU update, three iterations."""

    def __init__(self, dim, slots, iters):
        super().__init__()
        self.iters = iters
        self.slots = nn.Parameter(torch.randn(slots, dim))
        self.ni, self.ns = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.wi = nn.Linear(dim, 3 * dim)
        self.wh = nn.Linear(dim, 3 * dim)

    def forward(self, x, keep):
        b, n, d = x.shape
        k, v = self.kv(self.ni(x)).chunk(2, -1)
        s = self.slots.unsqueeze(0).expand(b, -1, -1)
        m = keep.unsqueeze(-1).to(x.dtype)
        for _ in range(self.iters):
            a = torch.bmm(k, self.q(self.ns(s)).transpose(1, 2)) * d ** -0.5
            a = torch.softmax(a, dim=-1) * m
            w = a / (a.sum(1, keepdim=True) + 1e-6)
            u = torch.bmm(w.transpose(1, 2), v)
            r, z, c = self.wi(u).chunk(3, -1)
            hr, hz, hc = self.wh(s).chunk(3, -1)
            z = torch.sigmoid(z + hz)
            c = torch.tanh(c + torch.sigmoid(r + hr) * hc)
            s = (1 - z) * c + z * s
        return s, a.argmax(-1)


def get_inputs():
    return [torch.randn(48, 1021, 104), torch.rand(48, 1021) > 0.2]


def get_init_inputs():
    return [104, 11, 3]
