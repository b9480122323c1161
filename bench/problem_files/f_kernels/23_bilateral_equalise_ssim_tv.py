import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, radius, sigma_space, sigma_range, bins):
        super().__init__()
        self.radius, self.sigma_range, self.bins = radius, sigma_range, bins
        r = torch.arange(-radius, radius + 1, dtype=torch.float32)
        self.register_buffer("space", torch.exp(-(r[:, None] ** 2 + r[None, :] ** 2) / (2 * sigma_space ** 2)).flatten())
        w = torch.exp(-torch.arange(-5, 6, dtype=torch.float32) ** 2 / (2 * 1.5 ** 2))
        self.register_buffer("gauss", w / w.sum())
        self.register_buffer("ycc", torch.tensor([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]))
        self.register_buffer("edges", torch.linspace(0, 1, bins + 1))
        sob = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]])
        self.register_buffer("sobel", torch.stack((sob, sob.T)).unsqueeze(1))
        self.mix = nn.Parameter(torch.rand(4) + 0.5)

    def bilateral(self, y):
        b, _, h, w = y.shape
        k = 2 * self.radius + 1
        nb = F.unfold(F.pad(y, [self.radius] * 4, mode="reflect"), k).view(b, k * k, h, w)
        wt = self.space.view(1, -1, 1, 1) * torch.exp(-(nb - y).square() / (2 * self.sigma_range ** 2))
        return (wt * nb).sum(1, keepdim=True) / wt.sum(1, keepdim=True)

    def equalise(self, y):
        flat = y.flatten(1).clamp(0, 1)
        bin_ = (torch.bucketize(flat, self.edges, right=True) - 1).clamp(0, self.bins - 1)
        hist = torch.zeros(flat.shape[0], self.bins, device=y.device).scatter_add(1, bin_, torch.ones_like(flat))
        limit = 3.0 * flat.shape[1] / self.bins
        excess = (hist - limit).clamp_min(0).sum(1, keepdim=True)
        hist = hist.clamp(max=limit) + excess / self.bins
        cdf = F.pad(hist.cumsum(1) / flat.shape[1], (1, 0))
        lo, hi = cdf.gather(1, bin_), cdf.gather(1, bin_ + 1)
        frac = (flat - self.edges[bin_]) * self.bins
        return torch.lerp(lo, hi, frac).view_as(y)

    def blur(self, x):
        c = x.shape[1]
        x = F.conv2d(x, self.gauss.view(1, 1, -1, 1).expand(c, 1, -1, 1), groups=c)
        return F.conv2d(x, self.gauss.view(1, 1, 1, -1).expand(c, 1, 1, -1), groups=c)

    def ssim(self, x, y):
        mx, my = self.blur(x), self.blur(y)
        vx, vy, vxy = self.blur(x * x) - mx * mx, self.blur(y * y) - my * my, self.blur(x * y) - mx * my
        c1, c2 = 0.01 ** 2, 0.03 ** 2
        cs = (2 * vxy + c2) / (vx + vy + c2)
        return ((2 * mx * my + c1) / (mx * mx + my * my + c1) * cs).mean((1, 2, 3)), cs.mean((1, 2, 3))

    def forward(self, rgb, target):
        lin = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb.clamp_min(0.04045) + 0.055) / 1.055).pow(2.4))
        lin = lin / (1 + lin) * 2
        srgb = torch.where(lin <= 0.0031308, lin * 12.92, 1.055 * lin.clamp_min(0.0031308).pow(1 / 2.4) - 0.055)
        ycc = torch.einsum("ij,bjhw->bihw", self.ycc, srgb)
        y, chroma = ycc[:, :1], ycc[:, 1:]
        base = self.bilateral(y)
        y2 = 0.5 * self.equalise(base) + 0.5 * base + 1.3 * (y - base)
        back = torch.linalg.inv(self.ycc)
        out = torch.einsum("ij,bjhw->bihw", back, torch.cat((y2, 1.1 * chroma), 1)).clamp(0, 1)
        s1, _ = self.ssim(out, target)
        s2, cs = self.ssim(F.avg_pool2d(out, 2), F.avg_pool2d(target, 2))
        g1 = F.conv2d(out.mean(1, keepdim=True), self.sobel)
        g2 = F.conv2d(target.mean(1, keepdim=True), self.sobel)
        edge = (torch.sqrt(g1.square().sum(1) + 1e-6) - torch.sqrt(g2.square().sum(1) + 1e-6)).abs().mean((1, 2))
        tv = (out[..., 1:] - out[..., :-1]).abs().mean((1, 2, 3)) + (out[:, :, 1:] - out[:, :, :-1]).abs().mean((1, 2, 3))
        return out, (torch.stack((1 - s1, 1 - s2, edge, tv), 1) * self.mix).sum(1), cs


def get_inputs():
    smooth = F.interpolate(torch.rand(2, 3, 9, 11), size=(107, 143), mode="bilinear")
    rgb = (smooth + 0.05 * torch.randn(2, 3, 107, 143)).clamp(0, 1)
    return [rgb, (smooth + 0.02 * torch.randn(2, 3, 107, 143)).clamp(0, 1)]


def get_init_inputs():
    return [2, 1.5, 0.12, 64]
