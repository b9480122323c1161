import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Multiplies two upper triangular matrices, symmetrises the result, and scales it by a spectral norm found with a few matrix-vector steps."""

    def __init__(self, size, steps):
        super().__init__()
        self.steps = steps
        self.left = nn.Parameter(torch.randn(size, size) / size ** 0.5)
        self.start = nn.Parameter(torch.randn(size))

    def forward(self, a):
        p = torch.triu(torch.triu(self.left) @ torch.triu(a, diagonal=1))
        s = p + p.T
        v = F.normalize(self.start, dim=0)
        for _ in range(self.steps):
            v = F.normalize(s @ (s @ v), dim=0)
        rho = (s @ v).norm()
        y = F.hardtanh(s * (8.0 / rho), -0.75, 1.25)
        off = y.abs().sum(dim=1) - y.diagonal().abs()
        return y / (1.0 + off).unsqueeze(0), y.diagonal() - off, rho


def get_inputs():
    return [torch.randn(509, 509) / 509 ** 0.5]


def get_init_inputs():
    return [509, 5]
