import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Pair update: layer norm, two gated projections, contraction over the first index, norm, gated output."""

    def __init__(self, ch):
        super().__init__()
        self.norm_in = nn.LayerNorm(ch)
        self.left = nn.Linear(ch, 2 * ch)
        self.right = nn.Linear(ch, 2 * ch)
        self.norm_out = nn.LayerNorm(ch)
        self.out = nn.Linear(ch, ch)
        self.gate = nn.Linear(ch, ch)

    def forward(self, z):
        x = self.norm_in(z)
        a = F.glu(self.left(x), dim=-1)
        b = F.glu(self.right(x), dim=-1)
        t = torch.einsum("kic,kjc->ijc", a, b) / math.sqrt(z.shape[0])
        return z + torch.sigmoid(self.gate(x)) * self.out(self.norm_out(t))


batch = 381
ch = 128


def get_inputs():
    return [torch.randn(batch, batch, ch)]


def get_init_inputs():
    return [ch]
