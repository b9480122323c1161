import torch
import torch.nn as nn
import torch.nn.functional as F


def warp(img, flow):
    b, _, h, w = img.shape
    ys = torch.arange(h, device=img.device, dtype=img.dtype)
    xs = torch.arange(w, device=img.device, dtype=img.dtype)
    gy, gx = torch.meshgrid(ys, xs, indexing="ij")
    px = (gx + flow[:, 0]) * (2.0 / (w - 1)) - 1.0
    py = (gy + flow[:, 1]) * (2.0 / (h - 1)) - 1.0
    inside = ((px.abs() <= 1) & (py.abs() <= 1)).to(img.dtype).unsqueeze(1)
    out = F.grid_sample(img, torch.stack((px, py), -1), mode="bilinear", padding_mode="border", align_corners=True)
    return out, inside


def charbonnier(x):
    return (x * x + 1e-3 ** 2).pow(0.45)


class Model(nn.Module):
    def __init__(self, patch, alpha1, alpha2, edge):
        super().__init__()
        self.patch, self.alpha1, self.alpha2, self.edge = patch, alpha1, alpha2, edge
        self.register_buffer("luma", torch.tensor([0.2989, 0.587, 0.114]).view(1, 3, 1, 1))
        self.weight = nn.Parameter(torch.rand(3) + 0.5)

    def census(self, img):
        gray = (img * self.luma).sum(1, keepdim=True) * 255
        b, _, h, w = gray.shape
        p = self.patch
        nb = F.unfold(gray, p, padding=p // 2).view(b, p * p, h, w)
        d = nb - gray
        return d / torch.sqrt(0.81 + d * d)

    def smooth(self, flow, img):
        def second(t, dim):
            n = t.shape[dim]
            return t.narrow(dim, 2, n - 2) - 2 * t.narrow(dim, 1, n - 2) + t.narrow(dim, 0, n - 2)
        total = 0.0
        for dim in (2, 3):
            n = img.shape[dim]
            g = (img.narrow(dim, 2, n - 2) - img.narrow(dim, 0, n - 2)).abs().mean(1, keepdim=True)
            total = total + (torch.exp(-self.edge * g) * charbonnier(second(flow, dim))).mean()
        return total

    def forward(self, first, second, fw, bw):
        warped, inside = warp(second, fw)
        back, _ = warp(bw, fw)
        diff = (fw + back).square().sum(1, keepdim=True)
        bound = self.alpha1 * (fw.square() + back.square()).sum(1, keepdim=True) + self.alpha2
        vis = torch.sigmoid(4 * (bound - diff)) * inside
        dist = (self.census(first) - self.census(warped)).square()
        ham = (dist / (0.1 + dist)).sum(1, keepdim=True)
        border = F.pad(torch.ones_like(ham[..., 3:-3, 3:-3]), (3, 3, 3, 3))
        mask = vis * border
        census = (charbonnier(ham) * mask).sum() / (mask.sum() + 1e-6)
        photo = (charbonnier(first - warped) * vis).sum() / (vis.sum() + 1e-6)
        parts = torch.stack((census, photo, self.smooth(fw, first)))
        return (parts * self.weight).sum(), warped, vis


def get_inputs():
    h, w = 97, 131
    flow = F.interpolate(3 * torch.randn(2, 2, 5, 7), size=(h, w), mode="bilinear", align_corners=True)
    bw = -flow + 0.5 * F.interpolate(torch.randn(2, 2, 6, 6), size=(h, w), mode="bilinear", align_corners=True)
    return [torch.rand(2, 3, h, w), torch.rand(2, 3, h, w), flow, bw]


def get_init_inputs():
    return [7, 0.05, 0.5, 10.0]
