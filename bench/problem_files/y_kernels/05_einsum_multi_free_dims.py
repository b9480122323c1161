import torch
import torch.nn as nn


class Model(nn.Module):
    """4-d tensor contraction over two non-adjacent axes, then RMS norm over a pair of odd axes."""

    def __init__(self, j, k, l, m):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(k, l, j, m) / (j * k) ** 0.5)
        self.gain = nn.Parameter(torch.rand(l, 1, m) + 0.5)

    def forward(self, x):
        y = torch.einsum("bjik,kljm->blim", x, self.weight)
        rms = torch.sqrt(y.pow(2).mean(dim=(1, 3), keepdim=True) + 1e-6)
        return y / rms * self.gain


batch_size = 48
dim_j = 36
dim_i = 61
dim_k = 50
dim_l = 10
dim_m = 70


def get_inputs():
    return [torch.randn(batch_size, dim_j, dim_i, dim_k)]


def get_init_inputs():
    return [dim_j, dim_k, dim_l, dim_m]
