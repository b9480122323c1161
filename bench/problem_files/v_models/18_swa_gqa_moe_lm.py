from dataclasses import dataclass, field
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 301
    hidden: int = 72
    n_heads: int = 6
    n_kv: int = 2
    head_dim: int = 14
    window: int = 9
    n_experts: int = 5
    top_k: int = 2
    expert_dim: int = 40
    shared_dim: int = 52
    softcap: float = 20.0
    rope_theta: float = 10000.0
    rope_fraction: float = 0.5
    layer_types: Tuple[str, ...] = field(default_factory=lambda: ("dense", "moe"))
    route_scale: Optional[float] = 1.5


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return (x * (1.0 + self.weight.float())).to(dtype)


def rope(x, theta, fraction):
    """Rotates interleaved pairs of the first part of each head."""
    b, h, t, d = x.shape
    rot = int(d * fraction) // 2 * 2
    xr, xp = x[..., :rot], x[..., rot:]
    inv = theta ** (-torch.arange(0, rot, 2, device=x.device).float() / rot)
    ang = torch.outer(torch.arange(t, device=x.device).float(), inv)
    c, s = ang.cos(), ang.sin()
    x1, x2 = xr.unflatten(-1, (-1, 2)).unbind(-1)
    xr = torch.stack([x1 * c - x2 * s, x1 * s + x2 * c], dim=-1).flatten(-2)
    return torch.cat([xr, xp], dim=-1)


class WindowAttention(nn.Module):
    """Causal sliding window in blocks: every block sees itself and the block before it; logits are soft-capped."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.hidden, (cfg.n_heads + 2 * cfg.n_kv) * cfg.head_dim, bias=False)
        self.o = nn.Linear(cfg.n_heads * cfg.head_dim, cfg.hidden, bias=False)
        self.sink = nn.Parameter(torch.zeros(cfg.n_heads))
        self.qn, self.kn = RMSNorm(cfg.head_dim), RMSNorm(cfg.head_dim)

    def forward(self, x):
        c = self.cfg
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, -1, c.head_dim).transpose(1, 2).split([c.n_heads, c.n_kv, c.n_kv], dim=1)
        q, k = rope(self.qn(q), c.rope_theta, c.rope_fraction), rope(self.kn(k), c.rope_theta, c.rope_fraction)
        w = c.window
        extra = -t % w
        q, k, v = (F.pad(z, (0, 0, 0, extra)) for z in (q, k, v))
        n = (t + extra) // w
        q = q.reshape(b, c.n_kv, c.n_heads // c.n_kv, n, w, c.head_dim)

        def pairs(z):
            z = z.unflatten(2, (n, w))
            prev = F.pad(z, (0, 0, 0, 0, 1, 0))[:, :, :-1]
            return torch.cat([prev, z], dim=3)

        k, v = pairs(k), pairs(v)
        s = torch.einsum("bgrnqd,bgnkd->bgrnqk", q, k) * c.head_dim ** -0.5
        s = c.softcap * torch.tanh(s / c.softcap)
        i = torch.arange(w, device=x.device)[:, None] + w
        j = torch.arange(2 * w, device=x.device)[None]
        ok = (j <= i) & (i - j < w)
        first = torch.arange(n, device=x.device)[:, None, None] == 0
        ok = ok & ~(first & (j < w))
        s = s.masked_fill(~ok, -1e30)
        sink = self.sink.view(1, c.n_kv, -1, 1, 1, 1).expand(b, -1, -1, n, w, 1)
        p = torch.cat([s, sink], -1).softmax(-1)[..., :-1]
        o = torch.einsum("bgrnqk,bgnkd->bnqgrd", p, v)
        return self.o(o.reshape(b, n * w, -1)[:, :t])


class SwiGLU(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.gate_up = nn.Linear(d, 2 * h, bias=False)
        self.down = nn.Linear(h, d, bias=False)

    def forward(self, x):
        g, u = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(g) * u)


class MoE(nn.Module):
    """Sigmoid scores, selection with a balancing bias that is not trained, gathered expert weights, a shared expert."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.gate = nn.Parameter(torch.randn(cfg.n_experts, cfg.hidden) * cfg.hidden ** -0.5)
        self.register_buffer("bias", torch.linspace(-0.05, 0.05, cfg.n_experts))
        self.register_buffer("load", torch.zeros(cfg.n_experts))
        self.w1 = nn.Parameter(torch.randn(cfg.n_experts, cfg.hidden, 2 * cfg.expert_dim) * cfg.hidden ** -0.5)
        self.w2 = nn.Parameter(torch.randn(cfg.n_experts, cfg.expert_dim, cfg.hidden) * cfg.expert_dim ** -0.5)
        self.shared = SwiGLU(cfg.hidden, cfg.shared_dim)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        score = torch.sigmoid(x @ self.gate.t())
        _, idx = torch.topk(score + self.bias, self.cfg.top_k, dim=-1)
        w = score.gather(1, idx)
        w = w / w.sum(-1, keepdim=True) * self.cfg.route_scale
        dense = torch.zeros_like(score).scatter(1, idx, w)
        g, u = torch.einsum("nd,edf->enf", x, self.w1).chunk(2, -1)
        y = torch.einsum("enf,efd,ne->nd", F.silu(g) * u, self.w2, dense)
        with torch.no_grad():
            counts = F.one_hot(idx, self.cfg.n_experts).sum((0, 1)).to(self.load.dtype)
            self.load.mul_(0.9).add_(counts, alpha=0.1)
        frac = (dense > 0).float().mean(0)
        balance = (frac * score.mean(0)).sum() * self.cfg.n_experts
        return (y + self.shared(x)).view(shape), balance


class Model(nn.Module):
    """A decoder with sliding-window grouped-query attention, partial rotary, sandwich norms and a mixture of experts."""

    def __init__(self, **kw):
        super().__init__()
        self.cfg = cfg = Config(**kw)
        self.wte = nn.Embedding(cfg.vocab_size, cfg.hidden)
        self.attn = nn.ModuleList([WindowAttention(cfg) for _ in cfg.layer_types])
        self.ffn = nn.ModuleList([MoE(cfg) if t == "moe" else SwiGLU(cfg.hidden, 3 * cfg.hidden) for t in cfg.layer_types])
        self.norms = nn.ModuleList([nn.ModuleList([RMSNorm(cfg.hidden) for _ in range(4)]) for _ in cfg.layer_types])
        self.final = RMSNorm(cfg.hidden)
        self.head = nn.Linear(cfg.hidden, cfg.vocab_size, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids)
        aux = x.new_zeros(())
        for attn, ffn, (n1, n2, n3, n4) in zip(self.attn, self.ffn, self.norms):
            x = x + n2(attn(n1(x)))
            y = ffn(n3(x))
            if isinstance(y, tuple):
                y, balance = y
                aux = aux + balance
            x = x + n4(y)
        logits = self.head(self.final(x)) / self.cfg.hidden ** 0.5
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), ids[:, 1:].reshape(-1))
        return logits, loss + 0.01 * aux


def get_inputs():
    return [torch.randint(0, 301, (2, 43))]


def get_init_inputs():
    return []
