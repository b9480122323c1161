import torch
import torch.nn as nn


class Model(nn.Module):
    """Mean, deviation, skew, kurtosis, min and max over axes 0 and 2 of one tensor; used to recalibrate it."""

    def __init__(self, ch, hidden):
        super().__init__()
        self.fc1 = nn.Linear(6, hidden)
        self.fc2 = nn.Linear(hidden, 2)
        self.base = nn.Parameter(torch.randn(ch, 1) * 0.1)

    def forward(self, x):
        mean = x.mean(dim=(0, 2))
        d = x - mean[None, :, None]
        d2 = d * d
        var = d2.mean(dim=(0, 2))
        std = torch.sqrt(var + 1e-5)
        skew = (d2 * d).mean(dim=(0, 2)) / (std * (var + 1e-5))
        kurt = (d2 * d2).mean(dim=(0, 2)) / (var + 1e-5).square() - 3.0
        lo = x.amin(dim=(0, 2))
        hi = x.amax(dim=(0, 2))
        stats = torch.stack([mean, std, skew, kurt, lo, hi], dim=-1)
        a, b = self.fc2(torch.tanh(self.fc1(stats))).split(1, dim=-1)
        return torch.tanh(d / std[None, :, None] * (1.0 + a) + b + self.base)


batch = 96
ch = 200


def get_inputs():
    return [torch.randn(batch, ch, 1501)]


def get_init_inputs():
    return [ch, 32]
