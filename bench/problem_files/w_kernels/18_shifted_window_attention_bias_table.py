import torch
import torch.nn as nn


class Model(nn.Module):
    """Shifted 7x7 window attention on a channels-last map with a gathered relative position bias table."""

    def __init__(self, dim, heads, window, shift):
        super().__init__()
        self.heads = heads
        self.window = window
        self.shift = shift
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.1)
        r = torch.arange(window)
        coords = torch.stack(torch.meshgrid(r, r, indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :] + (window - 1)
        self.register_buffer("index", (rel[0] * (2 * window - 1) + rel[1]).flatten())

    def forward(self, x):
        b, hh, ww, c = x.shape
        m = self.window
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), dims=(1, 2))
        y = y.view(b, hh // m, m, ww // m, m, c).transpose(2, 3).reshape(-1, m * m, c)
        qkv = self.qkv(y).view(-1, m * m, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        s = (q @ k.transpose(-1, -2)) * (c // self.heads) ** -0.5
        bias = self.table[self.index].view(m * m, m * m, self.heads).permute(2, 0, 1)
        p = torch.softmax(s + bias, dim=-1)
        o = self.proj((p @ v).transpose(1, 2).reshape(-1, m * m, c))
        o = o.view(b, hh // m, ww // m, m, m, c).transpose(2, 3).reshape(b, hh, ww, c)
        return x + torch.roll(o, (self.shift, self.shift), dims=(1, 2))


batch = 8
dim = 96


def get_inputs():
    return [torch.randn(batch, 112, 112, dim)]


def get_init_inputs():
    return [dim, 3, 7, 3]
