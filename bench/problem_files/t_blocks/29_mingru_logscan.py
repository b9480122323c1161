import torch
import torch.nn as nn
import torch.nn.functional as F


class MinGRU(nn.Module):
    def __init__(self, d, exp):
        super().__init__()
        self.hg = nn.Linear(d, 2 * exp, bias=False)
        self.out = nn.Linear(exp, d, bias=False)

    def forward(self, x):
        h, g = self.hg(x).chunk(2, dim=-1)
        log_c = -F.softplus(g)
        log_z = -F.softplus(-g)
        log_h = torch.where(h >= 0, (F.relu(h) + 0.5).log(), -F.softplus(-h))
        log_v = log_z + log_h
        a_star = log_c.cumsum(dim=1)
        log_s = (log_v - a_star).logcumsumexp(dim=1)
        return self.out((a_star + log_s).exp())


class Model(nn.Module):
    """minGRU blocks in parallel log-space scan, with RMS norm and causal depthwise conv."""

    def __init__(self, d, exp, k, depth):
        super().__init__()
        self.k = k
        self.convs = nn.ModuleList([nn.Conv1d(d, d, k, groups=d) for _ in range(depth)])
        self.gammas = nn.ParameterList([nn.Parameter(torch.ones(d)) for _ in range(depth)])
        self.cells = nn.ModuleList([MinGRU(d, exp) for _ in range(depth)])

    def forward(self, x):
        for conv, gamma, cell in zip(self.convs, self.gammas, self.cells):
            c = F.pad(x.transpose(1, 2), (self.k - 1, 0))
            x = x + conv(c).transpose(1, 2)
            y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gamma
            x = x + cell(y)
        return x


def get_inputs():
    return [torch.randn(2, 110, 42)]


def get_init_inputs():
    return [42, 63, 4, 2]
