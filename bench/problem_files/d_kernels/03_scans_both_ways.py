import torch
import torch.nn as nn


class Model(nn.Module):
    """Forward, reversed and log-space scans over three different dims, plus cummax indices with ties, then reductions."""

    def __init__(self, steps, step_size):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-1.0, 1.0, steps).view(1, steps, 1))
        self.step_size = step_size

    def forward(self, x):
        fwd = torch.cumsum(x * torch.sigmoid(self.decay), dim=1)
        rev = torch.flip(torch.cumsum(torch.flip(x, [1]), dim=1), [1])
        gap = fwd.cummax(dim=1).values - fwd  # drawdown, >= 0
        quant = torch.round(x * 4.0)  # many ties: cummax keeps the last one
        best, where = torch.cummax(quant, dim=1)
        prod = torch.cumprod(1.0 + self.step_size * torch.tanh(x), dim=0)
        lse = torch.logcumsumexp(x, dim=2)
        a = gap.amax(dim=1) + rev.mean(dim=1) * prod.sum(dim=1) * 0.01
        b = (where.to(x.dtype).mean(dim=1) - best.sum(dim=1)) / x.shape[1]
        return a + b - lse.amin(dim=1)


def get_inputs():
    return [torch.randn(41, 331, 67)]


def get_init_inputs():
    return [331, 0.05]
