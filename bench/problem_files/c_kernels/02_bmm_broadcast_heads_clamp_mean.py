import torch
import torch.nn as nn


class Model(nn.Module):
    """Batched matmul that broadcasts a per-head weight over the batch, adds a per-head offset, clamps and averages the heads."""

    def __init__(self, heads, k, n, low, high):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, heads, k, n) / k ** 0.5)
        self.offset = nn.Parameter(torch.randn(heads, 1, 1) * 0.1)
        self.low = low
        self.high = high

    def forward(self, x):
        y = torch.matmul(x.unsqueeze(1), self.weight) + self.offset
        y = torch.clamp(y, self.low, self.high)
        return y.mean(dim=1)


batch, rows, heads, k, n = 24, 389, 7, 510, 258


def get_inputs():
    return [torch.randn(batch, rows, k)]


def get_init_inputs():
    return [heads, k, n, -0.75, 1.5]
