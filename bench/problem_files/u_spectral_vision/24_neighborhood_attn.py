import torch
import torch.nn as nn
import torch.nn.functional as F


class NeighborhoodAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads = heads
        self.window = window
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.proj = nn.Conv2d(dim, dim, 1)
        self.rpb = nn.Parameter(0.02 * torch.randn(heads, window * window))

    def forward(self, x):
        B, C, H, W = x.shape
        h, k, d = self.heads, self.window, C // self.heads
        q, key, v = self.qkv(x).chunk(3, dim=1)
        pad = k // 2
        key = F.unfold(key, k, padding=pad).view(B, h, d, k * k, H * W)
        v = F.unfold(v, k, padding=pad).view(B, h, d, k * k, H * W)
        valid = F.unfold(torch.ones(1, 1, H, W, device=x.device, dtype=x.dtype), k, padding=pad)
        valid = valid.view(1, 1, k * k, H * W) > 0
        q = q.reshape(B, h, d, 1, H * W) * self.scale
        attn = (q * key).sum(2) + self.rpb[None, :, :, None]       # (B, h, k*k, HW)
        attn = attn.masked_fill(~valid, float("-inf")).softmax(dim=2)
        out = (attn.unsqueeze(2) * v).sum(3).reshape(B, C, H, W)
        return self.proj(out), attn


class Model(nn.Module):
    """Convolution plus neighbourhood attention block (unfold): depthwise conv, local attention, conv MLP."""

    def __init__(self, dim=24, heads=3, window=5):
        super().__init__()
        self.cpe = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm1 = nn.GroupNorm(1, dim)
        self.attn = NeighborhoodAttention(dim, heads, window)
        self.norm2 = nn.GroupNorm(1, dim)
        self.mlp = nn.Sequential(nn.Conv2d(dim, 2 * dim, 1), nn.GELU(), nn.Conv2d(2 * dim, dim, 1))
        self.ls1 = nn.Parameter(0.1 * torch.ones(dim, 1, 1))
        self.ls2 = nn.Parameter(0.1 * torch.ones(dim, 1, 1))

    def forward(self, x):
        x = x + self.cpe(x)
        y, attn = self.attn(self.norm1(x))
        x = x + self.ls1 * y
        x = x + self.ls2 * self.mlp(self.norm2(x))
        entropy = -(attn * (attn + 1e-9).log()).sum(2).mean((1, 2))
        return x, entropy


def get_inputs():
    return [torch.randn(2, 24, 13, 15)]


def get_init_inputs():
    return [24, 3, 5]
