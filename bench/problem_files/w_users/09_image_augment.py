import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def rgb_to_hsv(img, eps=1e-6):
    r, g, b = img.unbind(1)
    mx, arg = img.max(1)
    mn = img.min(1)[0]
    d = mx - mn
    hr = (g - b) / (d + eps)
    hg = 2.0 + (b - r) / (d + eps)
    hb = 4.0 + (r - g) / (d + eps)
    h = torch.stack([hr, hg, hb], 1).gather(1, arg.unsqueeze(1)).squeeze(1)
    h = (h / 6.0) % 1.0
    return torch.stack([h, d / (mx + eps), mx], dim=1)


def hsv_to_rgb(hsv):
    h, s, v = hsv.unbind(1)
    i = torch.floor(h * 6)
    f = h * 6 - i
    p, q, t = v * (1 - s), v * (1 - f * s), v * (1 - (1 - f) * s)
    i = i.long() % 6
    table = torch.stack([torch.stack([v, q, p, p, t, v], 1),
                         torch.stack([t, v, v, q, p, p], 1),
                         torch.stack([p, p, t, v, v, q], 1)], 1)
    return table.gather(2, i[:, None, None].expand(-1, 3, 1, -1, -1)).squeeze(2)


class Model(nn.Module):
    """Batch augmentation with all randomness given as inputs, then a small stem."""

    def __init__(self, size=32, hole=8):
        super().__init__()
        self.size, self.hole = size, hole
        self.theta_scale = nn.Parameter(torch.tensor(0.3))
        self.gamma = nn.Parameter(torch.ones(3))
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        sig = torch.arange(5).float() - 2
        g = torch.exp(-sig ** 2 / 2)
        g = g / g.sum()
        self.register_buffer("blur", (g[:, None] * g[None, :]).expand(3, 1, 5, 5).contiguous())
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, img, noise, flips, hole_xy):
        B, C, H, W = img.shape
        x = torch.where(flips[:, None, None, None], img.flip(-1), img)
        ang = noise[:, 0] * self.theta_scale * math.pi
        c, s = ang.cos(), ang.sin()
        z = torch.zeros_like(c)
        rot = torch.stack([torch.stack([c, -s, 0.1 * noise[:, 1]], -1),
                           torch.stack([s, c, 0.1 * noise[:, 2]], -1)], 1)
        shear = torch.eye(3, device=img.device, dtype=img.dtype).repeat(B, 1, 1)
        shear[:, 0, 1] = 0.2 * noise[:, 3]
        rot = torch.baddbmm(torch.stack([torch.stack([z, z, z], -1)] * 2, 1), rot, shear)
        grid = F.affine_grid(rot, [B, C, H, W], align_corners=False)
        x = F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        x = x.clamp(0, 1)
        # colour jitter
        hsv = rgb_to_hsv(x)
        hsv[:, 0] = (hsv[:, 0] + 0.1 * noise[:, 4, None, None]) % 1.0
        hsv[:, 1].mul_(1 + 0.2 * torch.tanh(noise[:, 5, None, None])).clamp_(0, 1)
        x = hsv_to_rgb(hsv)
        x = (x + 1e-3) ** F.softplus(self.gamma + 0.54).view(1, 3, 1, 1)
        # posterise half of the batch in integers, straight through
        q = (x.detach() * 255).clamp(0, 255).to(torch.uint8)
        q = torch.bitwise_and(q, 0b11100000).float() / 255
        half = torch.arange(B, device=img.device) % 2 == 0
        x = torch.where(half.view(-1, 1, 1, 1), x, x + (q - x.detach()))
        # blur + unsharp
        bl = F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), self.blur, groups=3)
        x = x + 0.5 * (x - bl)
        # cutout: a hole per image
        ys = torch.arange(H, device=img.device).view(1, H, 1)
        xs = torch.arange(W, device=img.device).view(1, 1, W)
        in_hole = ((ys - hole_xy[:, 0].view(-1, 1, 1)).abs() < self.hole // 2) & \
                  ((xs - hole_xy[:, 1].view(-1, 1, 1)).abs() < self.hole // 2)
        x = x.masked_fill(in_hole.unsqueeze(1), 0.5)
        # mixup with the reversed batch
        lam = torch.sigmoid(noise[:, 6]).view(-1, 1, 1, 1)
        x = lam * x + (1 - lam) * x.flip(0)
        x.sub_(self.mean).div_(self.std)
        hist = torch.zeros(B, 16, device=img.device)
        bins = torch.bucketize(img.mean(1).flatten(1), torch.linspace(0, 1, 17, device=img.device)[1:-1])
        hist.scatter_add_(1, bins, torch.ones_like(bins, dtype=hist.dtype))
        equalised = (hist.cumsum(1) / (H * W)).gather(1, bins).view(B, H, W)
        out = self.stem(x)
        small = F.interpolate(out, scale_factor=0.6, mode="bicubic", align_corners=False, antialias=False)
        return x, out, small, equalised


def get_inputs():
    B, S = 8, 32
    return [torch.rand(B, 3, S, S), torch.randn(B, 7), torch.rand(B) > 0.5, torch.randint(0, S, (B, 2))]


def get_init_inputs():
    return [32, 8]
