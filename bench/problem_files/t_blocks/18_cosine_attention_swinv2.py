import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Scaled cosine attention with clamped logit scale, log-spaced continuous bias MLP, post-norm."""

    def __init__(self, dim, heads, size):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.qb = nn.Parameter(torch.zeros(dim))
        self.vb = nn.Parameter(torch.zeros(dim))
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(heads, 1, 1)))
        self.cpb = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, heads, bias=False))
        self.proj = nn.Linear(dim, dim)
        self.n1 = nn.LayerNorm(dim)
        r = torch.arange(-(size - 1), size, dtype=torch.float32)
        t = torch.stack(torch.meshgrid(r, r, indexing="ij"), -1) * 8 / (size - 1)
        t = torch.sign(t) * torch.log2(t.abs() + 1.0) / math.log2(8)
        self.register_buffer("coords", t)
        c = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
        rel = c[:, :, None] - c[:, None, :] + size - 1
        self.register_buffer("idx", rel[0] * (2 * size - 1) + rel[1])

    def forward(self, x):
        b, n, d = x.shape
        bias = torch.cat([self.qb, torch.zeros_like(self.qb), self.vb])
        qkv = F.linear(x, self.qkv.weight, bias).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        att = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        att = att * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()
        table = self.cpb(self.coords).view(-1, self.h)
        rpb = table[self.idx.view(-1)].view(n, n, self.h).permute(2, 0, 1)
        att = (att + 16 * torch.sigmoid(rpb)).softmax(dim=-1)
        o = (att @ v).transpose(1, 2).reshape(b, n, d)
        return x + self.n1(self.proj(o))


def get_inputs():
    return [torch.randn(7, 81, 57)]


def get_init_inputs():
    return [57, 3, 9]
