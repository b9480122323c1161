import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class KANLinear(nn.Module):
    def __init__(self, i, o, grid, order):
        super().__init__()
        self.order = order
        h = 2.0 / grid
        g = torch.arange(-order, grid + order + 1) * h - 1.0
        self.register_buffer("grid", g.expand(i, -1).contiguous())
        self.base = nn.Parameter(torch.randn(o, i) * i ** -0.5)
        self.spline = nn.Parameter(torch.randn(o, i, grid + order) * 0.1)
        self.scaler = nn.Parameter(torch.ones(o, i))

    def bases(self, x):
        g = self.grid
        x = x.unsqueeze(-1)
        b = ((x >= g[:, :-1]) & (x < g[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)])
            right = (g[:, k + 1 :] - x) / (g[:, k + 1 :] - g[:, 1:-k])
            b = left * b[..., :-1] + right * b[..., 1:]
        return b

    def forward(self, x):
        w = self.spline * self.scaler.unsqueeze(-1)
        return F.linear(F.silu(x), self.base) + F.linear(self.bases(x).flatten(1), w.flatten(1))


class Model(nn.Module):
    """SIREN coordinate features, a bottleneck adapter and a LoRA update, then two KAN layers."""

    def __init__(self, din, hidden, kan, dout, bottleneck, rank):
        super().__init__()
        self.w0 = 30.0
        self.s1 = nn.Linear(din, hidden)
        self.s2 = nn.Linear(hidden, hidden)
        nn.init.uniform_(self.s1.weight, -1 / din, 1 / din)
        b = math.sqrt(6 / hidden) / self.w0
        nn.init.uniform_(self.s2.weight, -b, b)
        self.loraA = nn.Parameter(torch.randn(rank, hidden) * 0.02)
        self.loraB = nn.Parameter(torch.randn(hidden, rank) * 0.02)
        self.down = nn.Linear(hidden, bottleneck)
        self.up = nn.Linear(bottleneck, hidden)
        self.k1 = KANLinear(hidden, kan, 5, 3)
        self.k2 = KANLinear(kan, dout, 7, 2)

    def forward(self, x):
        h = torch.sin(self.w0 * self.s1(x))
        h = torch.sin(self.w0 * (self.s2(h) + 0.5 * (h @ self.loraA.t()) @ self.loraB.t()))
        h = h + self.up(F.mish(self.down(h)))
        return self.k2(torch.tanh(self.k1(torch.tanh(h))))


def get_inputs():
    return [torch.rand(310, 3) * 2 - 1]


def get_init_inputs():
    return [3, 38, 21, 4, 11, 4]
