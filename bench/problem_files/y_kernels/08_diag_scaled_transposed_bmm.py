import torch
import torch.nn as nn


class Model(nn.Module):
    """Batched A^T B with diagonal scalings on both sides, normalised by its Frobenius norm."""

    def __init__(self, p, q):
        super().__init__()
        self.left = nn.Parameter(torch.rand(p) + 0.5)
        self.right = nn.Parameter(torch.rand(q) + 0.5)

    def forward(self, A, B):
        C = torch.bmm(A.transpose(1, 2), B)
        C = torch.diag(self.left) @ C @ torch.diag(self.right)
        norm = torch.linalg.matrix_norm(C, ord="fro", keepdim=True)
        return C / norm * C.shape[-1]


batch_size = 20
inner = 1100
p = 900
q = 750


def get_inputs():
    return [torch.randn(batch_size, inner, p), torch.randn(batch_size, inner, q)]


def get_init_inputs():
    return [p, q]
