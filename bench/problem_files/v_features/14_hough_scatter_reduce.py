import math

import torch
import torch.nn as nn


class Model(nn.Module):
    """Hough transform by index_put_ with accumulation, peaks after non-maximum suppression,
    lines drawn back, and statistics of the strips of each angle by every scatter_reduce."""

    def __init__(self, h, w, angles, strips, peaks):
        super().__init__()
        self.peaks, self.strips = peaks, strips
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        theta = torch.arange(angles, dtype=torch.float64) * (math.pi / angles)
        rho = (x.flatten()[None] - w // 2) * theta.cos()[:, None] + (y.flatten()[None] - h // 2) * theta.sin()[:, None]
        reach = int(math.hypot(h, w) / 2) + 1
        self.bins = 2 * reach + 1
        self.register_buffer("bin", (torch.round(rho) + reach).long())  # angles, pixels
        self.register_buffer("strip", torch.div(self.bin[::5] * strips, self.bins, rounding_mode="floor"))

    def forward(self, image):
        b, h, w = image.shape
        gy, gx = torch.gradient(image, dim=(1, 2))
        edge = torch.hypot(gx, gy + 1e-6)
        strong = torch.where(edge > 0.25, edge, torch.zeros_like(edge)).flatten(1)
        angles, pixels = self.bin.shape
        votes = image.new_zeros(b, angles, self.bins)
        at = (torch.arange(b).view(b, 1, 1), torch.arange(angles).view(1, -1, 1), self.bin)
        votes = votes.index_put(at, strong.unsqueeze(1).expand(b, angles, pixels), accumulate=True)

        wide = torch.nn.functional.pad(votes, (2, 2, 2, 2))
        top = wide.unfold(1, 5, 1).unfold(2, 5, 1).amax((-1, -2))
        lone = torch.where(votes == top, votes, torch.zeros_like(votes))
        score, index = lone.flatten(1).topk(self.peaks, dim=1)
        line, rho = index // self.bins, index % self.bins
        drawn = torch.zeros(b, pixels, dtype=torch.int32)
        on_line = (self.bin[line] - rho.unsqueeze(-1)).abs() <= 1  # b peaks pixels
        for k in range(self.peaks):
            drawn[on_line[:, k]] = k + 1

        few = self.strip.shape[0]
        idx = self.strip.expand(b, few, pixels)
        src = image.flatten(1).unsqueeze(1).expand(b, few, pixels)
        base = image.new_ones(b, few, self.strips)
        stats = [
            base.scatter_reduce(2, idx, src, "sum", include_self=False),
            base.scatter_reduce(2, idx, src, "mean", include_self=True),
            base.scatter_reduce(2, idx, src, "amax", include_self=False),
            base.scatter_reduce(2, idx, src, "amin", include_self=True),
            base.scatter_reduce(2, idx, 1.0 + 0.01 * src, "prod", include_self=False),
        ]
        canvas = torch.zeros(b * pixels, dtype=torch.uint8)
        first = on_line.to(torch.uint8).argmax(-1) + torch.arange(b)[:, None] * pixels
        canvas.put_(first.flatten(), torch.full((b * self.peaks,), 7, dtype=torch.uint8), accumulate=True)
        return votes, score, torch.stack([line, rho], -1), drawn.view(b, h, w), stats, canvas.view(b, h, w)


def get_inputs():
    b, h, w = 2, 61, 83
    y, x = torch.meshgrid(torch.arange(h) * 1.0, torch.arange(w) * 1.0, indexing="ij")
    t = 3.0 * torch.rand(b, 5, 1, 1)
    d = torch.cos(t) * (x - w // 2) + torch.sin(t) * (y - h // 2) - 20 * torch.randn(b, 5, 1, 1)
    return [torch.exp(-d.square() / 2).sum(1) + 0.05 * torch.randn(b, h, w)]


def get_init_inputs():
    return [61, 83, 45, 19, 6]
