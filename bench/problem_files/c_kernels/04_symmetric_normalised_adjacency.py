import torch
import torch.nn as nn


class Model(nn.Module):
    """Symmetrises a non-negative matrix, scales both sides by the inverse root of its row sums and multiplies it with a tall matrix."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, A, X):
        S = 0.5 * (A + A.T)
        S = S + torch.eye(S.shape[0], device=S.device, dtype=S.dtype)
        d = torch.rsqrt(S.sum(dim=1) + self.eps)
        L = d[:, None] * S * d[None, :]
        Y = X - L @ X
        return torch.relu(Y) + torch.diagonal(L).unsqueeze(1)


n, f = 3803, 210


def get_inputs():
    return [torch.rand(n, n), torch.randn(n, f)]


def get_init_inputs():
    return [1e-6]
