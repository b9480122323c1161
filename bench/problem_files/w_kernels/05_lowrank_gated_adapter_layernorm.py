import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Low rank adapter whose rank directions are weighted by a softmax, then a layer norm."""

    def __init__(self, dim, rank):
        super().__init__()
        self.down = nn.Parameter(torch.randn(dim, rank) / math.sqrt(dim))
        self.gate = nn.Parameter(torch.randn(dim, rank) / math.sqrt(dim))
        self.up = nn.Parameter(torch.randn(rank, dim) / math.sqrt(rank))
        self.scale = nn.Parameter(torch.full((dim,), 0.3))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        h = F.silu(x @ self.down)
        w = torch.softmax(x @ self.gate, dim=-1)
        delta = (h * w) @ self.up
        return self.norm(x + self.scale * delta)


batch = 24
seq = 1365
dim = 1024
rank = 56


def get_inputs():
    return [torch.randn(batch, seq, dim)]


def get_init_inputs():
    return [dim, rank]
