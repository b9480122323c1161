import torch
import torch.nn as nn


class Model(nn.Module):
    """Product of two transposed operands whose first one is lower triangular, keeping the strict upper part of the scaled result."""

    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, A, B):
        # A: (K, M), B: (N, K); A^T is upper triangular when A is lower
        C = torch.matmul(torch.tril(A).T, B.T)
        return torch.triu(C * self.alpha, diagonal=1)


K, M, N = 2051, 1777, 2309


def get_inputs():
    return [torch.randn(K, M), torch.randn(N, K)]


def get_init_inputs():
    return [0.02]
