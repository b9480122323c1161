import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, HQ, HKV, HD, W = 2, 1536, 1440, 24, 4, 64, 512


class Model(nn.Module):
    """Grouped-query attention by hand: fused biased qkv split by sizes, interleaved
    rotary embedding, sliding causal window and a learned sink logit per head."""

    def __init__(self, dim, q_heads, kv_heads, head_dim, max_len, window):
        super().__init__()
        self.hq, self.hkv, self.hd = q_heads, kv_heads, head_dim
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.qkv = nn.Linear(dim, (q_heads + 2 * kv_heads) * head_dim, bias=True)
        nn.init.normal_(self.qkv.bias, std=0.3)
        self.sinks = nn.Parameter(torch.randn(q_heads))
        self.out = nn.Linear(q_heads * head_dim, dim, bias=True)
        inv = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        ang = torch.arange(max_len).float()[:, None] * inv
        self.register_buffer("cos", ang.cos())
        self.register_buffer("sin", ang.sin())
        i = torch.arange(max_len)
        self.register_buffer("visible", (i[:, None] >= i[None]) & (i[:, None] - i[None] < window))

    def rope(self, x):
        t = x.shape[1]
        cos, sin = self.cos[:t, None, :], self.sin[:t, None, :]
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)

    def forward(self, x):
        b, t, _ = x.shape
        g = self.hq // self.hkv
        q, k, v = self.qkv(self.norm(x)).split(
            [self.hq * self.hd, self.hkv * self.hd, self.hkv * self.hd], dim=-1)
        q = self.rope(q.view(b, t, self.hq, self.hd)).view(b, t, self.hkv, g, self.hd)
        k = self.rope(k.view(b, t, self.hkv, self.hd))
        v = v.view(b, t, self.hkv, self.hd)
        s = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.hd ** -0.5
        s = s.masked_fill(~self.visible[:t, :t], float("-inf"))
        sink = self.sinks.view(1, self.hkv, g, 1, 1).expand(b, -1, -1, t, 1)
        p = torch.cat([s, sink], dim=-1).softmax(dim=-1)[..., :-1]
        o = torch.einsum("bhgqk,bkhd->bqhgd", p, v).reshape(b, t, -1)
        return x + self.out(o)


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, HQ, HKV, HD, T, W]
