import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Causal attention with relative positions by the pad-reshape-slice skew."""

    def __init__(self, dim, heads, length):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.er = nn.Parameter(torch.randn(heads, length, dim // heads) * 0.1)
        self.slope = nn.Parameter(torch.linspace(0.5, 0.01, heads).view(heads, 1, 1))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        rel = q @ self.er.transpose(1, 2)
        rel = F.pad(rel, (1, 0)).reshape(b, self.h, t + 1, t)[:, :, 1:, :]
        s = (q @ k.transpose(-2, -1) + rel) * (d // self.h) ** -0.5
        i = torch.arange(t, device=x.device)
        dist = i.unsqueeze(1) - i
        s = s - self.slope * dist.abs().to(x.dtype)
        s = s.masked_fill(dist < 0, float("-inf"))
        y = torch.softmax(s, -1) @ v
        return x + y.transpose(1, 2).reshape(b, t, d)


def get_inputs():
    return [torch.randn(6, 509, 282)]


def get_init_inputs():
    return [282, 6, 509]
