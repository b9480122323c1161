import math

import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, HEADS = 8, 577, 720, 6


class GRUGate(nn.Module):
    """g(x, y): GRU with the sub-layer output as the input and the residual as the state."""

    def __init__(self, dim, bias):
        super().__init__()
        self.wy = nn.Linear(dim, 3 * dim, bias=True)
        self.ux = nn.Linear(dim, 2 * dim, bias=False)
        self.uh = nn.Linear(dim, dim, bias=False)
        self.bg = nn.Parameter(torch.full((dim,), bias))

    def forward(self, x, y):
        yz, yr, yh = self.wy(y).chunk(3, dim=-1)
        xr, xz = self.ux(x).chunk(2, dim=-1)
        r = torch.sigmoid(yr + xr)
        z = torch.sigmoid(yz + xz - self.bg)
        cand = torch.tanh(yh + self.uh(r * x))
        return (1 - z) * x + z * cand


class Model(nn.Module):
    """Differential attention (two softmax maps, learned lambda, per-head RMS norm) with a
    GRU-type gate instead of the residual, then a gated ReLU layer with a second gate."""

    def __init__(self, dim, heads, lambda_init):
        super().__init__()
        self.h, self.d, self.l0 = heads, dim // heads // 2, lambda_init
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qk = nn.Linear(dim, 2 * dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=True)
        self.lam = nn.Parameter(torch.randn(4, heads, self.d) * 0.2)
        self.sub = nn.Parameter(torch.ones(heads, 1, 2 * self.d))
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate1, self.gate2 = GRUGate(dim, 1.0), GRUGate(dim, 0.5)
        self.fc = nn.Linear(dim, 4 * dim)
        self.fo = nn.Linear(2 * dim, dim)

    def forward(self, x):
        b, t, dim = x.shape
        n = self.ln1(x)
        qk = self.qk(n).view(b, t, self.h, 4, self.d).permute(3, 0, 2, 1, 4)
        q1, k1, q2, k2 = qk.unbind(0)
        v = self.v(n).view(b, t, self.h, 2 * self.d).transpose(1, 2)
        s = self.d ** -0.5
        keep = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        a1 = (q1 @ k1.mT * s).masked_fill(~keep, -math.inf).softmax(-1)
        a2 = (q2 @ k2.mT * s).masked_fill(~keep, -math.inf).softmax(-1)
        l = (self.lam[0] * self.lam[1]).sum(-1).exp() - (self.lam[2] * self.lam[3]).sum(-1).exp()
        a = a1 - (l + self.l0).view(1, -1, 1, 1) * a2
        o = a @ v
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-3) * self.sub * (1 - self.l0)
        x = self.gate1(x, self.o(o.transpose(1, 2).reshape(b, t, dim)))
        f = self.fc(self.ln2(x)).view(b, t, 2, 2 * dim)
        f = F.relu(f[:, :, 0]) * f[:, :, 1]
        return self.gate2(x, F.relu(self.fo(f)))


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, HEADS, 0.2]
