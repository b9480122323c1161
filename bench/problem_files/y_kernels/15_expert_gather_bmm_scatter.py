import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Expert-choice MLP: gather tokens per expert, two batched matmuls with SiLU, weight, scatter-add back."""

    def __init__(self, experts, dim, hidden):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(experts, dim, hidden) / dim ** 0.5)
        self.b1 = nn.Parameter(torch.randn(experts, 1, hidden) * 0.1)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, dim) * 3.0 / hidden ** 0.5)

    def forward(self, x, token_idx, gates):
        e, cap = token_idx.shape
        xe = x[token_idx.reshape(-1)].view(e, cap, -1)
        h = F.silu(torch.bmm(xe, self.w1) + self.b1)
        y = torch.bmm(h, self.w2) * torch.sigmoid(gates).unsqueeze(-1)
        out = torch.zeros_like(x)
        return x + out.index_add(0, token_idx.reshape(-1), y.reshape(e * cap, -1))


experts = 12
tokens = 6000
capacity = 1009
dim = 600
hidden = 1500


def get_inputs():
    idx = torch.stack([torch.randperm(tokens)[:capacity] for _ in range(experts)])
    return [torch.randn(tokens, dim), idx, torch.randn(experts, capacity)]


def get_init_inputs():
    return [experts, dim, hidden]
