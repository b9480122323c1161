import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadLayerNorm(nn.Module):
    def __init__(self, ndim):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ndim))

    def forward(self, x):  # (B, NH, S, DH)
        B, NH, S, DH = x.shape
        gn_in = x.transpose(1, 2).reshape(B * S, NH * DH)
        out = F.group_norm(gn_in, num_groups=NH, weight=1.0 + self.weight, bias=None, eps=1e-5)
        return out.view(B, S, NH, DH).transpose(1, 2)


class Model(nn.Module):
    """xLSTM mLSTM cell, recurrent form with max-stabilised exponential gates."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.nh = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=True)
        self.igate = nn.Linear(3 * dim, num_heads)
        self.fgate = nn.Linear(3 * dim, num_heads)
        self.ogate = nn.Linear(dim, dim)
        self.outnorm = MultiHeadLayerNorm(dim)
        self.skip = nn.Parameter(torch.ones(dim))
        nn.init.normal_(self.igate.bias, std=0.1)
        with torch.no_grad():
            self.fgate.bias.copy_(torch.linspace(3.0, 6.0, num_heads))

    def step(self, c, n, m, q, k, v, i, f):
        dh = q.shape[-1]
        log_f = F.logsigmoid(f)
        m_new = torch.max(log_f + m, i)
        fa = torch.exp(log_f + m - m_new)
        ia = torch.exp(i - m_new)
        k = k / math.sqrt(dh)
        c = fa[..., None] * c + ia[..., None] * torch.einsum("bhd,bhe->bhde", k, v)
        n = fa * n + ia * k
        num = torch.einsum("bhd,bhde->bhe", q, c)
        qn = (q * n).sum(-1, keepdim=True)
        den = torch.maximum(qn.abs(), torch.exp(-m_new)) + 1e-6
        return num / den, c, n, m_new

    def forward(self, x):
        B, S, D = x.shape
        qkv = self.qkv(x)
        ig = self.igate(qkv).transpose(1, 2).unsqueeze(-1)  # B NH S 1
        fg = self.fgate(qkv).transpose(1, 2).unsqueeze(-1)
        q, k, v = [t.view(B, S, self.nh, -1).transpose(1, 2) for t in qkv.chunk(3, dim=-1)]
        dh = q.shape[-1]
        c = x.new_zeros(B, self.nh, dh, dh)
        n = x.new_zeros(B, self.nh, dh)
        m = x.new_zeros(B, self.nh, 1)
        hs = []
        for t in range(S):
            h, c, n, m = self.step(c, n, m, q[:, :, t], k[:, :, t], v[:, :, t], ig[:, :, t], fg[:, :, t])
            hs.append(h)
        h = torch.stack(hs, dim=2)
        h = self.outnorm(h).transpose(1, 2).reshape(B, S, D)
        y = (h + self.skip * F.silu(x)) * torch.sigmoid(self.ogate(x))
        return y, c, n, m


def get_inputs():
    return [torch.randn(3, 14, 44)]


def get_init_inputs():
    return [44, 4]
