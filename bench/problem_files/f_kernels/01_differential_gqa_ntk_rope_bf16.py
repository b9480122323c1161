import torch
import torch.nn as nn


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Model(nn.Module):
    def __init__(self, dim, heads, kv_heads, head_dim, trained_len, depth):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.trained_len = trained_len
        self.wq = nn.Linear(dim, 2 * heads * head_dim, bias=False)
        self.wk = nn.Linear(dim, 2 * kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(dim, 2 * kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(2 * heads * head_dim, dim, bias=False)
        self.sub_norm = nn.Parameter(1 + 0.1 * torch.randn(2 * head_dim))
        self.to(torch.bfloat16)
        self.lam = nn.Parameter(0.1 * torch.randn(4, head_dim))
        self.lam_init = 0.8 - 0.6 * 2.718281828 ** (-0.3 * depth)

    def rope(self, length, device):
        d = self.head_dim
        ratio = max(1.0, length / self.trained_len)
        base = 10000.0 * (2.0 * ratio - 1.0) ** (d / (d - 2))
        inv = base ** (-torch.arange(0, d, 2, device=device, dtype=torch.float32) / d)
        ang = torch.outer(torch.arange(length, device=device, dtype=torch.float32), inv)
        ang = torch.cat((ang, ang), dim=-1)
        return ang.cos(), ang.sin()

    def forward(self, x, lengths):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, 2 * self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, t, 2 * self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, t, self.kv_heads, 2 * self.head_dim).transpose(1, 2)
        cos, sin = self.rope(t, x.device)
        q = (q.float() * cos + rotate_half(q.float()) * sin).to(x.dtype)
        k = (k.float() * cos + rotate_half(k.float()) * sin).to(x.dtype)
        group = self.heads // self.kv_heads
        k = k.view(b, self.kv_heads, 1, 2, t, self.head_dim)
        k = k.expand(b, self.kv_heads, group, 2, t, self.head_dim).reshape(b, 2 * self.heads, t, self.head_dim)
        v = v.repeat_interleave(group, dim=1)
        scores = (q @ k.transpose(-1, -2)).float() * self.head_dim ** -0.5
        pos = torch.arange(t, device=x.device)
        keep = (pos[None, :] <= pos[:, None])[None, None] & (pos < lengths[:, None])[:, None, None, :]
        scores = scores.masked_fill(~keep, float("-inf"))
        p = scores.softmax(-1).view(b, self.heads, 2, t, t)
        lam = torch.exp((self.lam[0] * self.lam[1]).sum()) - torch.exp((self.lam[2] * self.lam[3]).sum()) + self.lam_init
        p = (p[:, :, 0] - lam * p[:, :, 1]).to(x.dtype)
        o = (p @ v).float()
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5) * self.sub_norm * (1 - self.lam_init)
        o = o.to(x.dtype).transpose(1, 2).reshape(b, t, -1)
        return x + self.wo(o)


def get_inputs():
    return [torch.randn(2, 211, 132).to(torch.bfloat16), torch.randint(120, 212, (2,))]


def get_init_inputs():
    return [132, 6, 2, 22, 128, 3]
