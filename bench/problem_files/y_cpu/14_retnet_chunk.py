import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_every_two(x):
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6, affine=True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x if self.weight is None else x * self.weight


class MultiScaleRetention(nn.Module):
    def __init__(self, dim, heads, value_factor=2):
        super().__init__()
        self.heads = heads
        self.key_dim = dim // heads
        self.head_dim = dim * value_factor // heads
        self.scaling = self.key_dim ** -0.5
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim * value_factor, bias=False)
        self.g_proj = nn.Linear(dim, dim * value_factor, bias=False)
        self.out_proj = nn.Linear(dim * value_factor, dim, bias=False)
        self.group_norm = RMSNorm(self.head_dim, affine=False)
        for p in (self.q_proj, self.k_proj, self.v_proj, self.g_proj):
            nn.init.xavier_uniform_(p.weight, gain=2 ** -1)
        nn.init.xavier_uniform_(self.out_proj.weight)

    def forward(self, x, sin, cos, inner_decay, query_decay, value_decay, cross_decay):
        B, T, _ = x.shape
        C = inner_decay.size(-1)
        n = T // C
        q = self.q_proj(x).view(B, T, self.heads, self.key_dim).transpose(1, 2)
        k = (self.k_proj(x) * self.scaling).view(B, T, self.heads, self.key_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.heads, self.head_dim).transpose(1, 2)
        q = q * cos + rotate_every_two(q) * sin
        k = k * cos + rotate_every_two(k) * sin
        q, k, v = [t.reshape(B, self.heads, n, C, t.size(-1)) for t in (q, k, v)]

        inner = (q @ k.transpose(-1, -2)) * inner_decay[None, :, None]
        inner_out = inner @ v
        kv = k.transpose(-1, -2) @ (v * value_decay[None, :, None, :, None])
        state = torch.zeros(B, self.heads, self.key_dim, self.head_dim, dtype=v.dtype, device=v.device)
        states = []
        for i in range(n):
            states.append(state)
            state = state * cross_decay[None, :, None, None] + kv[:, :, i]
        cross_out = (q * query_decay[None, :, None, :, None]) @ torch.stack(states, dim=2)
        out = (inner_out + cross_out).reshape(B, self.heads, T, self.head_dim).transpose(1, 2)
        out = self.group_norm(out).reshape(B, T, -1)
        return self.out_proj(F.silu(self.g_proj(x)) * out)


class GLU(nn.Module):
    def __init__(self, dim, ffn):
        super().__init__()
        self.fc1, self.gate, self.fc2 = (nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False),
                                         nn.Linear(ffn, dim, bias=False))

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)) * self.gate(x))


class Model(nn.Module):
    """RetNet-like language model with chunkwise-recurrent retention; the tail of
    the sequence is padded up to a whole chunk and cut again."""

    def __init__(self, vocab, dim, heads, layers, ffn, chunk):
        super().__init__()
        self.chunk = chunk
        self.embed = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embed.weight, std=dim ** -0.5)
        self.norms1 = nn.ModuleList([RMSNorm(dim) for _ in range(layers)])
        self.norms2 = nn.ModuleList([RMSNorm(dim) for _ in range(layers)])
        self.rets = nn.ModuleList([MultiScaleRetention(dim, heads) for _ in range(layers)])
        self.ffns = nn.ModuleList([GLU(dim, ffn) for _ in range(layers)])
        self.norm = RMSNorm(dim)
        angle = 1.0 / (10000 ** torch.linspace(0, 1, dim // heads // 2))
        self.register_buffer("angle", angle.unsqueeze(-1).repeat(1, 2).flatten())
        decay = torch.log(1 - 2 ** (-5 - torch.arange(heads, dtype=torch.float)))
        self.register_buffer("decay", decay)

    def forward(self, tokens):
        B, T = tokens.shape
        x = self.embed(tokens) * math.sqrt(self.embed.embedding_dim)
        pad = (-T) % self.chunk
        if pad:
            x = F.pad(x, (0, 0, 0, pad))
        idx = torch.arange(T + pad, device=x.device, dtype=x.dtype)
        sin, cos = torch.sin(idx[:, None] * self.angle), torch.cos(idx[:, None] * self.angle)
        pos = torch.arange(self.chunk, device=x.device, dtype=x.dtype)
        rel = pos[:, None] - pos[None, :]
        mask = torch.exp(torch.where(rel >= 0, rel * self.decay[:, None, None], float("-inf")))
        query_decay = torch.exp((pos + 1) * self.decay[:, None])
        value_decay = torch.exp((self.chunk - 1 - pos) * self.decay[:, None])
        cross_decay = torch.exp(self.chunk * self.decay)
        for n1, ret, n2, ffn in zip(self.norms1, self.rets, self.norms2, self.ffns):
            x = x + ret(n1(x), sin, cos, mask, query_decay, value_decay, cross_decay)
            x = x + ffn(n2(x))
        return F.linear(self.norm(x[:, :T]), self.embed.weight)


def get_inputs():
    g = torch.Generator().manual_seed(13)
    return [torch.randint(0, 1511, (3, 229), generator=g)]


def get_init_inputs():
    return [1511, 168, 4, 4, 336, 48]
