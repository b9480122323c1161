import torch
import torch.nn as nn


class Model(nn.Module):
    """Standardise over batch and space, then Hoyer sparsity (L1/L2 ratio) per sample and Frobenius norm per channel."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        var, mean = torch.var_mean(x, dim=(0, 2, 3), keepdim=True, unbiased=False)
        z = (x - mean) * torch.rsqrt(var + self.eps)
        n = z[0].numel() ** 0.5
        l1 = z.abs().sum(dim=(1, 2, 3))
        l2 = torch.linalg.vector_norm(z, dim=(1, 2, 3))
        hoyer = (n - l1 / (l2 + self.eps)) / (n - 1.0)
        fro = torch.linalg.norm(x, dim=(2, 3))
        return hoyer, fro


batch_size = 90
channels = 131
height = 57
width = 59


def get_inputs():
    scale = torch.rand(1, channels, 1, 1) + 0.5
    return [torch.randn(batch_size, channels, height, width) * scale + 0.3]


def get_init_inputs():
    return [1e-5]
