import torch
import torch.nn as nn


class Model(nn.Module):
    """Rotary embedding by complex products, then causal attention inside blocks with soft-capped logits."""

    def __init__(self, seq, head_dim, block, cap, theta):
        super().__init__()
        self.block = block
        self.cap = cap
        freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angle = torch.arange(seq).float()[:, None] * freq[None, :]
        self.register_buffer("cos_sin", torch.stack([angle.cos(), angle.sin()], dim=-1))
        self.register_buffer("causal", torch.ones(block, block).tril().bool())
        self.qscale = nn.Parameter(torch.full((head_dim,), head_dim ** -0.5))

    def rotate(self, x):
        rot = torch.view_as_complex(self.cos_sin)
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(z * rot).flatten(-2)

    def forward(self, q, k, v):
        b, h, t, d = q.shape
        n = t // self.block
        q = self.rotate(q).view(b, h, n, self.block, d) * self.qscale
        k = self.rotate(k).view(b, h, n, self.block, d)
        v = v.view(b, h, n, self.block, d)
        s = torch.einsum("bhnqd,bhnkd->bhnqk", q, k)
        s = self.cap * torch.tanh(s / self.cap)
        s = s.masked_fill(~self.causal, float("-inf"))
        o = torch.einsum("bhnqk,bhnkd->bhnqd", torch.softmax(s, dim=-1), v)
        return o.reshape(b, h, t, d)


batch = 8
heads = 16
seq = 1024
head_dim = 64


def get_inputs():
    return [
        torch.randn(batch, heads, seq, head_dim),
        torch.randn(batch, heads, seq, head_dim),
        torch.randn(batch, heads, seq, head_dim),
    ]


def get_init_inputs():
    return [seq, head_dim, 128, 20.0, 10000.0]
