import torch
import torch.nn as nn


class Model(nn.Module):
    """Batched product of a lower-triangular mixing matrix with values, with a learned unit-scale diagonal."""

    def __init__(self, n):
        super().__init__()
        self.diag = nn.Parameter(1.0 + 0.1 * torch.randn(n))
        self.n = n

    def forward(self, A, B):
        L = torch.tril(A, diagonal=-1) / self.n ** 0.5
        return torch.bmm(L, B) + self.diag[:, None] * B


batch_size = 9
n = 1500
m = 1100


def get_inputs():
    return [torch.randn(batch_size, n, n), torch.randn(batch_size, n, m)]


def get_init_inputs():
    return [n]
