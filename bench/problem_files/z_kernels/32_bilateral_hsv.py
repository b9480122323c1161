import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """5x5 bilateral filter by shifted slices, morphological opening, then saturation and hue shift in HSV."""

    def __init__(self, radius):
        super().__init__()
        self.r = radius
        self.register_buffer("k", torch.tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1))
        self.ls = nn.Parameter(torch.tensor(0.4))
        self.lr = nn.Parameter(torch.tensor(-1.0))
        self.hue = nn.Parameter(torch.tensor(0.05))
        self.sat = nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        b, c, h, w = x.shape
        r = self.r
        p = F.pad(x, (r, r, r, r), mode="replicate")
        ks, kr = 0.5 * torch.exp(-2 * self.ls), 0.5 * torch.exp(-2 * self.lr)
        num, den = torch.zeros_like(x), torch.zeros_like(x[:, :1])
        for i in range(2 * r + 1):
            for j in range(2 * r + 1):
                s = p[:, :, i:i + h, j:j + w]
                wt = torch.exp(-kr * (s - x).square().sum(1, keepdim=True) - ks * ((i - r) ** 2 + (j - r) ** 2))
                num, den = num + wt * s, den + wt
        y = num / den
        er = -F.max_pool2d(-y, 3, 1, 1)
        y = torch.maximum(0.5 * (y + F.max_pool2d(er, 3, 1, 1)), er)
        mx, am = y.max(dim=1)
        delta = mx - y.amin(1)
        R, G, B = y.unbind(1)
        ds = delta + 1e-5
        hh = torch.where(am == 0, ((G - B) / ds) % 6.0, torch.where(am == 1, (B - R) / ds + 2, (R - G) / ds + 4)) / 6
        hh = torch.remainder(hh + self.hue, 1.0)
        sat = (delta / (mx + 1e-5) * self.sat).clamp(0, 1)
        k = torch.remainder(self.k + 6 * hh.unsqueeze(1), 6.0)
        v = mx.unsqueeze(1)
        return v - v * sat.unsqueeze(1) * torch.minimum(k, 4 - k).clamp(0, 1)


def get_inputs():
    return [torch.rand(6, 3, 431, 637)]


def get_init_inputs():
    return [2]
