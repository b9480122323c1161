import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Bilateral filter on colour images: unfolded neighbourhoods, spatial and
    range Gaussians, plus detail boosting of the removed layer."""

    def __init__(self, radius, sigma_s, sigma_r, boost):
        super().__init__()
        self.r = radius
        self.inv_r = 0.5 / sigma_r ** 2
        self.boost = boost
        g = torch.arange(-radius, radius + 1).float()
        d2 = g[:, None] ** 2 + g[None] ** 2
        self.register_buffer("spatial", torch.exp(-0.5 * d2 / sigma_s ** 2).reshape(1, -1, 1))

    def forward(self, img):
        B, C, H, W = img.shape
        k = 2 * self.r + 1
        pad = F.pad(img, (self.r,) * 4, mode="reflect")
        patches = F.unfold(pad, k).view(B, C, k * k, H * W)
        center = img.reshape(B, C, 1, H * W)
        dist = (patches - center).pow(2).sum(dim=1)
        w = self.spatial * torch.exp(-dist * self.inv_r)
        w = w / w.sum(dim=1, keepdim=True)
        base = (patches * w.unsqueeze(1)).sum(dim=2).view(B, C, H, W)
        detail = img - base
        return base, (base + self.boost * detail).clamp(0.0, 1.0)


def get_inputs():
    return [torch.rand(1, 3, 161, 187)]


def get_init_inputs():
    return [3, 2.0, 0.25, 1.8]
