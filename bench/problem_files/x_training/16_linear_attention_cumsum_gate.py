import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, HEADS, DK, CH = 4, 2048, 1000, 10, 50, 128


class Model(nn.Module):
    """Causal linear attention with elu+1 features, chunk states by a cumulative sum,
    normaliser, per-head group norm with scale and bias, and an output gate."""

    def __init__(self, dim, heads, key_dim, chunk):
        super().__init__()
        self.h, self.dk, self.dv, self.c = heads, key_dim, dim // heads, chunk
        self.wq = nn.Parameter(torch.randn(dim, heads, key_dim) / dim ** 0.5)
        self.wk = nn.Parameter(torch.randn(dim, heads, key_dim) / dim ** 0.5)
        self.bqk = nn.Parameter(torch.randn(2, heads, key_dim) * 0.3)
        self.vg = nn.Linear(dim, 2 * dim, bias=True)
        self.gn = nn.GroupNorm(heads, dim, eps=1e-4)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        nc = t // self.c
        phi = lambda s: F.elu(s) + 1
        q = phi(torch.einsum("btd,dhk->bhtk", x, self.wq) + self.bqk[0].unsqueeze(1))
        k = phi(torch.einsum("btd,dhk->bhtk", x, self.wk) + self.bqk[1].unsqueeze(1))
        g, v = self.vg(x).chunk(2, dim=-1)
        v = v.view(b, t, self.h, self.dv).transpose(1, 2)
        q = q.reshape(b, self.h, nc, self.c, self.dk)
        k = k.reshape(b, self.h, nc, self.c, self.dk) / self.c
        v = v.reshape(b, self.h, nc, self.c, self.dv)
        kv = k.transpose(-1, -2) @ v
        ksum = k.sum(dim=-2)
        kv_prev = kv.cumsum(dim=2) - kv
        k_prev = ksum.cumsum(dim=2) - ksum
        att = (q @ k.transpose(-1, -2)).tril()
        num = att @ v + q @ kv_prev
        den = att.sum(-1) + torch.einsum("bhzck,bhzk->bhzc", q, k_prev)
        y = num / (den.unsqueeze(-1) + 1e-3)
        y = y.reshape(b, self.h, t, self.dv).transpose(1, 2).reshape(b * t, d)
        y = self.gn(y).view(b, t, d)
        return self.out(y * torch.sigmoid(g)) + x


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, HEADS, DK, CH]
