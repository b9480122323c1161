import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Linformer self-attention block: keys and values projected along the sequence."""

    def __init__(self, dim, heads, seq, k):
        super().__init__()
        self.h = heads
        self.dh = dim // heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.E = nn.Parameter(torch.randn(seq, k) / math.sqrt(k))
        self.Fp = nn.Parameter(torch.randn(seq, k) / math.sqrt(k))
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x)
        q = self.to_q(y).reshape(b, n, self.h, self.dh)
        k, v = self.to_kv(y).chunk(2, dim=-1)
        k = torch.einsum("bnd,nk->bkd", k, self.E).reshape(b, -1, self.h, self.dh)
        v = torch.einsum("bnd,nk->bkd", v, self.Fp).reshape(b, -1, self.h, self.dh)
        logits = torch.einsum("bnhd,bkhd->bhnk", q, k) * self.dh ** -0.5
        o = torch.einsum("bhnk,bkhd->bnhd", logits.softmax(-1), v)
        x = x + self.out(o.reshape(b, n, d))
        return x + self.ff(self.norm2(x))


def get_inputs():
    return [torch.randn(3, 198, 90)]


def get_init_inputs():
    return [90, 5, 198, 37]
