import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Parallel gated recurrence in log space: one gemm, softplus gates, cumsum and logcumsumexp over time."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.proj = nn.Linear(dim, 2 * hidden)

    def forward(self, x):
        h, g = self.proj(x).chunk(2, dim=-1)
        log_keep = -F.softplus(g)
        log_take = -F.softplus(-g)
        log_h = torch.where(h >= 0, torch.log(F.relu(h) + 0.5), -F.softplus(-h))
        acc = torch.cumsum(log_keep, dim=1)
        state = acc + torch.logcumsumexp(log_take + log_h - acc, dim=1)
        return torch.exp(state)


batch = 32
seq = 1024
dim = 512
hidden = 384


def get_inputs():
    return [torch.randn(batch, seq, dim)]


def get_init_inputs():
    return [dim, hidden]
