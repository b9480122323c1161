import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """y = gelu(x W^T + b) + x, then every row is shifted by its own maximum and squashed."""

    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.gain = nn.Parameter(torch.randn(dim) * 0.1 + 1.0)

    def forward(self, x):
        y = F.gelu(self.proj(x)) + x
        m = y.amax(dim=1, keepdim=True)
        z = torch.exp(y - m) * self.gain
        return z + 0.5 * m


batch = 8192
dim = 1536


def get_inputs():
    return [torch.randn(batch, dim)]


def get_init_inputs():
    return [dim]
