import torch
import torch.nn as nn


class Model(nn.Module):
    """Triangle multiplication, outgoing and incoming, with 3-operand einsums and a pair mask."""

    def __init__(self, dim, hid):
        super().__init__()
        self.h = hid
        self.n1 = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, 4 * hid)
        self.n2 = nn.LayerNorm(2 * hid)
        self.out = nn.Linear(2 * hid, dim)
        self.gate = nn.Linear(dim, dim)

    def forward(self, z, w, mask):
        x = self.n1(z)
        p, g = self.proj(x).chunk(2, dim=-1)
        ab = p * torch.sigmoid(g)
        pair = (mask.unsqueeze(2) & mask.unsqueeze(1)).unsqueeze(-1)
        ab = torch.where(pair, ab, torch.zeros_like(ab))
        a, b = ab.split(self.h, dim=-1)
        o = torch.einsum("bk,bikc,bjkc->bijc", w, a, b)
        i = torch.einsum("bk,bkic,bkjc->bijc", w, a, b)
        y = self.out(self.n2(torch.cat([o, i], -1)))
        return z + torch.sigmoid(self.gate(x)) * y


def get_inputs():
    return [torch.randn(1, 251, 251, 96), torch.rand(1, 251), torch.rand(1, 251) > 0.1]


def get_init_inputs():
    return [96, 48]
