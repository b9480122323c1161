import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class GemmaRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        # Gemma: (x * w).to(dtype), not x.to(dtype) * w
        out = self._norm(x.float())
        out = out * (1.0 + self.weight.float())
        return out.type_as(x)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(x, n_rep):
    b, h, s, d = x.shape
    if n_rep == 1:
        return x
    return x[:, :, None].expand(b, h, n_rep, s, d).reshape(b, h * n_rep, s, d)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv, head_dim, softcap, window):
        super().__init__()
        self.n_heads, self.n_kv, self.head_dim = n_heads, n_kv, head_dim
        self.softcap, self.window = softcap, window
        self.q_proj = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(dim, n_kv * head_dim, bias=False)
        self.v_proj = nn.Linear(dim, n_kv * head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * head_dim, dim, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        q = self.q_proj(x).view(b, s, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, s, self.n_kv, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, s, self.n_kv, self.head_dim).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = repeat_kv(k, self.n_heads // self.n_kv)
        v = repeat_kv(v, self.n_heads // self.n_kv)
        att = torch.matmul(q, k.transpose(2, 3)) * self.head_dim ** -0.5
        att = torch.tanh(att / self.softcap) * self.softcap
        i = torch.arange(s, device=x.device)
        allowed = i[None, :] <= i[:, None]
        if self.window is not None:
            allowed = allowed & (i[:, None] - i[None, :] < self.window)
        mask = torch.zeros(s, s, dtype=att.dtype, device=x.device).masked_fill(~allowed, torch.finfo(att.dtype).min)
        att = att + mask
        att = F.softmax(att, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(att, v).transpose(1, 2).reshape(b, s, -1)
        return self.o_proj(out)


class Layer(nn.Module):
    def __init__(self, dim, n_heads, n_kv, head_dim, ffn, softcap, window):
        super().__init__()
        self.attn = Attention(dim, n_heads, n_kv, head_dim, softcap, window)
        self.gate_proj = nn.Linear(dim, ffn, bias=False)
        self.up_proj = nn.Linear(dim, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, dim, bias=False)
        self.pre_attn, self.post_attn = GemmaRMSNorm(dim), GemmaRMSNorm(dim)
        self.pre_ffn, self.post_ffn = GemmaRMSNorm(dim), GemmaRMSNorm(dim)

    def forward(self, x, cos, sin):
        x = x + self.post_attn(self.attn(self.pre_attn(x), cos, sin))
        h = self.pre_ffn(x)
        h = self.down_proj(F.gelu(self.gate_proj(h), approximate="tanh") * self.up_proj(h))
        return x + self.post_ffn(h)


class Model(nn.Module):
    """One sliding-window layer followed by one global layer, Gemma-2 2B widths."""

    def __init__(self, dim, n_heads, n_kv, head_dim, ffn, softcap, window):
        super().__init__()
        self.dim, self.head_dim = dim, head_dim
        self.local = Layer(dim, n_heads, n_kv, head_dim, ffn, softcap, window)
        self.globl = Layer(dim, n_heads, n_kv, head_dim, ffn, softcap, None)
        self.norm = GemmaRMSNorm(dim)

    def forward(self, x):
        pos = torch.arange(x.shape[1], device=x.device).float()
        inv = 1.0 / (10000.0 ** (torch.arange(0, self.head_dim, 2, device=x.device).float() / self.head_dim))
        emb = torch.outer(pos, inv)
        emb = torch.cat((emb, emb), dim=-1)
        cos, sin = emb.cos().to(x.dtype), emb.sin().to(x.dtype)
        x = x * torch.tensor(math.sqrt(self.dim), dtype=x.dtype, device=x.device)
        x = self.local(x, cos, sin)
        x = self.globl(x, cos, sin)
        return self.norm(x)


def get_inputs():
    return [torch.randn(1, 3072, 2304) * 0.02]


def get_init_inputs():
    return [2304, 8, 4, 256, 9216, 50.0, 1024]
