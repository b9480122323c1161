import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """GShard-style top-2 gating with capacity masks built from cumsum, plus load-balance loss."""

    def __init__(self, d, hidden, experts, capacity):
        super().__init__()
        self.e, self.cap = experts, capacity
        self.gate = nn.Linear(d, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, d, 2 * hidden) * d ** -0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, d) * hidden ** -0.5)

    def forward(self, x):
        b, n, d = x.shape
        t = x.reshape(-1, d)
        p = F.softmax(self.gate(t), dim=-1)
        i1 = p.argmax(-1)
        m1 = F.one_hot(i1, self.e).to(x.dtype)
        i2 = p.masked_fill(m1.bool(), -1.0).argmax(-1)
        m2 = F.one_hot(i2, self.e).to(x.dtype)
        pos1 = (torch.cumsum(m1, 0) - 1) * m1
        pos2 = (torch.cumsum(m2, 0) - 1 + m1.sum(0, keepdim=True)) * m2
        aux = (p.mean(0) * m1.mean(0)).sum() * self.e
        m1 = m1 * (pos1 < self.cap)
        m2 = m2 * (pos2 < self.cap)
        g1 = (p * m1).sum(-1)
        g2 = (p * m2).sum(-1)
        den = (g1 + g2).clamp(min=1e-9)
        g1, g2 = g1 / den, g2 / den
        l1 = pos1.sum(-1).long().clamp(max=self.cap - 1)
        l2 = pos2.sum(-1).long().clamp(max=self.cap - 1)
        c1 = g1[:, None, None] * m1[:, :, None] * F.one_hot(l1, self.cap)[:, None, :]
        c2 = g2[:, None, None] * m2[:, :, None] * F.one_hot(l2, self.cap)[:, None, :]
        comb = c1 + c2
        disp = (comb > 0).to(x.dtype)
        xe = torch.einsum("tec,td->ecd", disp, t)
        u, v = torch.bmm(xe, self.w1).chunk(2, -1)
        ye = torch.bmm(F.silu(u) * v, self.w2)
        y = torch.einsum("tec,ecd->td", comb, ye)
        return y.view(b, n, d), aux


def get_inputs():
    return [torch.randn(2, 83, 58)]


def get_init_inputs():
    return [58, 94, 7, 52]
