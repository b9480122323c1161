import torch
import torch.nn as nn


class Model(nn.Module):
    """Winsorise each row to its own order statistics, keep the top-k of the result, centre by medians."""

    def __init__(self, width, k):
        super().__init__()
        self.k = k
        self.s = nn.Parameter(1.0 + 0.2 * torch.randn(width))
        self.b = nn.Parameter(0.3 * torch.randn(width))
        self.out = nn.Linear(width, 37, bias=False)

    def forward(self, x):
        v = x * self.s + self.b
        order = v.detach().sort(dim=-1).values
        n = v.shape[-1]
        lo = order[:, n // 20, None]
        hi = order[:, n - 1 - n // 20, None]
        c = torch.clamp(v, min=lo, max=hi)            # many ties at both bounds afterwards
        c = torch.minimum(c, hi.expand_as(c) * 1.0)   # equal operands: gradient halves
        med, where_med = v.median(dim=-1, keepdim=True)
        mad = (v - med).abs().median(dim=-1, keepdim=True).values
        z = (c - med) / (mad + 0.05)
        vals, idx = v.topk(self.k, dim=-1)
        kth = vals[:, -1:]
        keep = v >= kth
        sparse = torch.where(keep, z, z * 0.125)
        dense = torch.zeros_like(v).scatter(1, idx, vals.softmax(-1))
        h = self.out(sparse + dense * kth)
        spread = c.amax(-1) - c.amin(-1)
        return h * torch.sigmoid(h.amax(dim=0)), spread + med.squeeze(-1), keep.sum(-1), where_med.squeeze(-1)


def get_inputs():
    return [torch.randn(257, 509)]


def get_init_inputs():
    return [509, 17]
