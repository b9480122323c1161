import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Ranks by two argsorts mapped to a reference of another size by integer interpolation, soft-bin EMD."""

    def __init__(self, c, bins):
        super().__init__()
        self.a = nn.Parameter(torch.full((c, 1), 0.7))
        self.cen = nn.Parameter(torch.linspace(-2.0, 2.0, bins))

    def hist(self, v):
        k = F.relu(1 - (v.unsqueeze(-1) - self.cen).abs() * 2)
        h = k.mean(-2)
        return h / h.sum(-1, keepdim=True), (k * v.unsqueeze(-1)).sum(-2) / (k.sum(-2) + 1e-3)

    def forward(self, src, ref):
        s, r = src.flatten(2), ref.flatten(2)
        n, m = s.shape[-1], r.shape[-1]
        rank = torch.argsort(s, dim=-1, stable=True).argsort(-1)
        rs = r.sort(-1).values
        num = (2 * rank + 1) * m - n
        lo = torch.div(num, 2 * n, rounding_mode="floor")
        fr = (num % (2 * n)).to(s.dtype) / (2 * n)
        y = torch.lerp(rs.gather(-1, lo.clamp(min=0)), rs.gather(-1, (lo + 1).clamp(max=m - 1)), fr)
        out = s + self.a * (y - s)
        h1, m1 = self.hist(out)
        h2, m2 = self.hist(r)
        emd = (h1.cumsum(-1) - h2.cumsum(-1)).abs().sum(-1)
        med = rs[..., m // 2: m // 2 + 1]
        up = (out > med).sum(-1)
        top = torch.where(rank >= n - 101, out - med, 0.0).sum(-1) / 101
        return out.view_as(src), emd, (m1 - m2).square().mean(-1), up - (n - up), top


def get_inputs():
    return [torch.randn(3, 3, 191, 211) * 0.7 + 0.3, torch.randn(3, 3, 173, 199).tanh()]


def get_init_inputs():
    return [3, 17]
