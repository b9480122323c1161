import torch
import torch.nn as nn


class Model(nn.Module):
    """Attention-free transformer: AFT-full with factorised position bias, causal, and a gated FFN."""

    def __init__(self, dim, hidden, max_len, rank):
        super().__init__()
        self.hidden = hidden
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, hidden * 3)
        self.u = nn.Parameter(torch.randn(max_len, rank) * 0.1)
        self.v = nn.Parameter(torch.randn(max_len, rank) * 0.1)
        self.proj = nn.Linear(hidden, dim)
        self.g = nn.Linear(dim, 2 * dim)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.to_qkv(self.norm(x)).split(self.hidden, dim=-1)
        w = self.u[:t] @ self.v[:t].t()
        w = w - w.max(dim=-1, keepdim=True)[0]
        ew = torch.exp(w) * torch.ones_like(w).tril()
        ek = torch.exp(k - k.max(dim=1, keepdim=True).values)
        num = torch.matmul(ew, ek * v)
        den = torch.matmul(ew, ek)
        y = torch.sigmoid(q) * num / (den + 1e-9)
        x = x + self.proj(y)
        a, c = self.g(x).chunk(2, -1)
        return x + torch.tanh(a) * torch.sigmoid(c)


def get_inputs():
    return [torch.randn(3, 121, 66)]


def get_init_inputs():
    return [66, 58, 128, 19]
