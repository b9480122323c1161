import torch
import torch.nn as nn


class Model(nn.Module):
    """Shifted window attention with relative position bias table and mask, plus MLP."""

    def __init__(self, dim, heads, size, ws, shift):
        super().__init__()
        self.h, self.ws, self.shift = heads, ws, shift
        self.n1 = nn.LayerNorm(dim)
        self.n2 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.fc1 = nn.Linear(dim, dim * 3)
        self.fc2 = nn.Linear(dim * 3, dim)
        self.table = nn.Parameter(torch.randn((2 * ws - 1) ** 2, heads) * 0.02)
        c = torch.stack(torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")).flatten(1)
        rel = (c[:, :, None] - c[:, None, :]) + (ws - 1)
        self.register_buffer("index", rel[0] * (2 * ws - 1) + rel[1])
        img = torch.zeros(size, size)
        cnt = 0
        for a in (slice(0, -ws), slice(-ws, -shift), slice(-shift, None)):
            for b in (slice(0, -ws), slice(-ws, -shift), slice(-shift, None)):
                img[a, b] = cnt
                cnt += 1
        m = img.view(size // ws, ws, size // ws, ws).transpose(1, 2).reshape(-1, ws * ws)
        self.register_buffer("mask", m[:, None, :] != m[:, :, None])

    def forward(self, x):
        b, H, W, c = x.shape
        ws, h = self.ws, self.h
        y = torch.roll(self.n1(x), (-self.shift, -self.shift), dims=(1, 2))
        y = y.view(b, H // ws, ws, W // ws, ws, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, c)
        q, k, v = self.qkv(y).reshape(-1, ws * ws, 3, h, c // h).permute(2, 0, 3, 1, 4).unbind(0)
        att = (q * (c // h) ** -0.5) @ k.transpose(-2, -1)
        att = att + self.table[self.index].permute(2, 0, 1)
        nw = self.mask.shape[0]
        att = att.view(b, nw, h, ws * ws, ws * ws).masked_fill(self.mask[None, :, None], -100.0)
        att = att.softmax(-1).view(-1, h, ws * ws, ws * ws)
        o = self.proj((att @ v).transpose(1, 2).reshape(-1, ws * ws, c))
        o = o.view(b, H // ws, W // ws, ws, ws, c).permute(0, 1, 3, 2, 4, 5).reshape(b, H, W, c)
        x = x + torch.roll(o, (self.shift, self.shift), dims=(1, 2))
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.n2(x))))


def get_inputs():
    return [torch.randn(2, 20, 20, 54)]


def get_init_inputs():
    return [54, 3, 20, 5, 2]
