import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class GlobalFilter(nn.Module):
    def __init__(self, dim, h=14, w=8):
        super().__init__()
        self.complex_weight = nn.Parameter(torch.randn(h, w, dim, 2, dtype=torch.float32) * 0.02)

    def forward(self, x):
        B, N, C = x.shape
        a = b = int(math.sqrt(N))
        x = x.view(B, a, b, C).to(torch.float32)
        x = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        weight = torch.view_as_complex(self.complex_weight)
        if weight.shape[0] != a:
            w = self.complex_weight.permute(2, 3, 0, 1)
            w = F.interpolate(w, size=(a, b // 2 + 1), mode="bilinear", align_corners=True)
            weight = torch.view_as_complex(w.permute(2, 3, 0, 1).contiguous())
        x = x * weight
        x = torch.fft.irfft2(x, s=(a, b), dim=(1, 2), norm="ortho")
        return x.reshape(B, N, C)


class Block(nn.Module):
    def __init__(self, dim, mlp_ratio, h, w, init_values=1e-1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.filter = GlobalFilter(dim, h, w)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim * mlp_ratio)
        self.fc2 = nn.Linear(dim * mlp_ratio, dim)
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        y = self.norm2(self.filter(self.norm1(x)))
        return x + self.gamma * self.fc2(F.gelu(self.fc1(y)))


class Model(nn.Module):
    """Global filter network: patch embedding, blocks with a learned frequency filter (one of them resized), head."""

    def __init__(self, img=56, patch=4, dim=40, classes=17):
        super().__init__()
        n = img // patch
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.pos_embed = nn.Parameter(torch.randn(1, n * n, dim) * 0.02)
        self.blocks = nn.ModuleList([
            Block(dim, 3, n, n // 2 + 1),
            Block(dim, 3, 9, 5),          # filter of another resolution, interpolated
        ])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = x + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        x = self.norm(x).mean(1)
        return self.head(x)


def get_inputs():
    return [torch.randn(2, 3, 56, 56)]


def get_init_inputs():
    return [56, 4, 40, 17]
