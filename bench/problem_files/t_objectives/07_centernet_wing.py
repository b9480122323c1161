import math
import torch
import torch.nn as nn


class AdaptiveWing(nn.Module):
    def __init__(self, omega=14.0, theta=0.5, eps=1.0, alpha=2.1):
        super().__init__()
        self.omega, self.theta, self.eps, self.alpha = omega, theta, eps, alpha

    def forward(self, pred, y):
        d = (y - pred).abs()
        r = self.theta / self.eps
        A = self.omega * (1 / (1 + r ** (self.alpha - y))) * (self.alpha - y) * (r ** (self.alpha - y - 1)) / self.eps
        C = self.theta * A - self.omega * torch.log(1 + r ** (self.alpha - y))
        small = self.omega * torch.log1p((d.clamp(min=1e-6) / self.eps) ** (self.alpha - y))
        return torch.where(d < self.theta, small, A * d - C)


class Model(nn.Module):
    """Heatmap keypoint objective: gaussian splat, CenterNet focal, adaptive wing, offset L1, soft-argmax wing."""

    def __init__(self, height, width, sigma):
        super().__init__()
        self.h, self.w, self.sigma = height, width, sigma
        self.awing = AdaptiveWing()
        self.wing_w, self.wing_eps = 10.0, 2.0
        self.wing_c = self.wing_w - self.wing_w * math.log(1 + self.wing_w / self.wing_eps)
        self.register_buffer("gx", torch.arange(width).float())
        self.register_buffer("gy", torch.arange(height).float())

    def splat(self, xy):
        xi, yi = xy[..., 0].floor(), xy[..., 1].floor()
        ex = torch.exp(-((self.gx - xi[..., None]) ** 2) / (2 * self.sigma ** 2))
        ey = torch.exp(-((self.gy - yi[..., None]) ** 2) / (2 * self.sigma ** 2))
        return ey[..., :, None] * ex[..., None, :]

    def forward(self, logits, offsets, xy, visible):
        B, K = xy.shape[:2]
        gt = self.splat(xy)
        pred = torch.clamp(logits.sigmoid(), 1e-4, 1 - 1e-4)
        pos = gt.eq(1).float()
        neg = gt.lt(1).float()
        pos_loss = torch.log(pred) * (1 - pred) ** 2 * pos
        neg_loss = torch.log(1 - pred) * pred ** 2 * (1 - gt) ** 4 * neg
        focal = -(pos_loss.sum() + neg_loss.sum()) / pos.sum().clamp(min=1)

        aw = self.awing(pred, gt)
        aw = (aw * (1 + 10 * (gt > 0.2).float())).mean()

        ind = (xy[..., 1].long() * self.w + xy[..., 0].long()).view(B, K, 1).expand(-1, -1, 2)
        off = offsets.flatten(2).transpose(1, 2).gather(1, ind)
        off_loss = ((off - (xy - xy.floor())).abs() * visible[..., None]).sum() / (visible.sum() + 1e-4)

        p = torch.softmax(logits.flatten(2) * 2.0, -1).view_as(logits)
        ex = (p.sum(2) * self.gx).sum(-1)
        ey = (p.sum(3) * self.gy).sum(-1)
        d = (torch.stack((ex, ey), -1) - xy).abs()
        wing = torch.where(d < self.wing_w, self.wing_w * torch.log(1 + d / self.wing_eps), d - self.wing_c)
        wing = (wing.mean(-1) * visible).mean()
        return focal + 0.1 * aw + off_loss + 0.05 * wing


def get_inputs():
    B, K, H, W = 2, 9, 47, 62
    xy = torch.rand(B, K, 2) * torch.tensor([W - 1.0, H - 1.0])
    return [torch.randn(B, K, H, W) - 2.19, torch.rand(B, 2, H, W), xy, (torch.rand(B, K) > 0.2).float()]


def get_init_inputs():
    return [47, 62, 2.0]
