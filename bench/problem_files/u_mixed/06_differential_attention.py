import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def lambda_init_fn(depth):
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


def repeat_kv(x, n_rep):
    bs, n_kv, slen, hd = x.shape
    if n_rep == 1:
        return x
    return x[:, :, None].expand(bs, n_kv, n_rep, slen, hd).reshape(bs, n_kv * n_rep, slen, hd)


class Model(nn.Module):
    """Differential transformer layer with grouped kv, head-wise GroupNorm and SwiGLU."""

    def __init__(self, embed_dim, depth, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv = num_heads, num_kv_heads
        self.n_rep = num_heads // num_kv_heads
        self.head_dim = embed_dim // num_heads // 2
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim // self.n_rep, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim // self.n_rep, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.lambda_init = lambda_init_fn(depth)
        for name in ("q1", "k1", "q2", "k2"):
            self.register_parameter(f"lambda_{name}", nn.Parameter(torch.zeros(self.head_dim).normal_(0, 0.1)))
        self.subln = nn.GroupNorm(num_heads, num_heads * 2 * self.head_dim, eps=1e-5)
        self.norm1 = nn.LayerNorm(embed_dim)
        self.norm2 = nn.LayerNorm(embed_dim)
        hidden = int(8 * embed_dim / 3)
        self.w1 = nn.Linear(embed_dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, embed_dim, bias=False)
        self.w3 = nn.Linear(embed_dim, hidden, bias=False)

    def attention(self, x):
        bsz, n, _ = x.size()
        q = self.q_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, n, 2 * self.num_kv, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, n, self.num_kv, 2 * self.head_dim).transpose(1, 2)
        k, v = repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep)
        q = q * self.head_dim ** -0.5
        w = torch.matmul(q, k.transpose(-1, -2))
        mask = torch.triu(torch.zeros([n, n], device=x.device).fill_(float("-inf")).type_as(w), 1)
        w = torch.nan_to_num(w)
        w += mask
        w = F.softmax(w, dim=-1, dtype=torch.float32).type_as(w)
        l1 = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1, dim=-1).float()).type_as(q)
        l2 = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2, dim=-1).float()).type_as(q)
        lam = l1 - l2 + self.lambda_init
        w = w.view(bsz, self.num_heads, 2, n, n)
        w = w[:, :, 0] - lam * w[:, :, 1]
        o = torch.matmul(w, v)                                  # b h n 2d
        o = o.transpose(1, 2).reshape(bsz * n, -1)
        o = self.subln(o).view(bsz, n, -1) * (1 - self.lambda_init)
        return self.out_proj(o)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


def get_inputs():
    return [torch.randn(2, 33, 96)]


def get_init_inputs():
    return [96, 3, 4, 2]
