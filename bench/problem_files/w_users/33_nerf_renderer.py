import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Rays:
    o: torch.Tensor
    d: torch.Tensor
    near: torch.Tensor
    far: torch.Tensor


def sample_pdf(bins, weights, u):
    pdf = weights + 1e-5
    pdf = pdf / pdf.sum(-1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
    inds = torch.searchsorted(cdf, u.contiguous(), right=True)
    below = torch.max(torch.zeros_like(inds), inds - 1)
    above = torch.min((cdf.shape[-1] - 1) * torch.ones_like(inds), inds)
    g = torch.stack([below, above], -1)
    shape = [g.shape[0], g.shape[1], cdf.shape[-1]]
    cg = torch.gather(cdf.unsqueeze(1).expand(shape), 2, g)
    bg = torch.gather(bins.unsqueeze(1).expand(shape), 2, g)
    den = cg[..., 1] - cg[..., 0]
    den = torch.where(den < 1e-5, torch.ones_like(den), den)
    return bg[..., 0] + (u - cg[..., 0]) / den * (bg[..., 1] - bg[..., 0])


class Field(nn.Module):
    def __init__(self, res, feat, freqs):
        super().__init__()
        self.plane = nn.Parameter(torch.randn(3, feat, res, res) * 0.3)
        self.line = nn.Parameter(torch.randn(feat, 8, 8, 8) * 0.3)
        self.freqs = freqs
        self.mlp = nn.Sequential(nn.Linear(2 * feat + 3 * (2 * freqs + 1), 32), nn.ReLU(), nn.Linear(32, 4))

    def encode(self, x):
        out = [x]
        for i in range(self.freqs):
            out += [torch.sin(2.0 ** i * x), torch.cos((2.0 ** i) * x)]
        return torch.cat(out, -1)

    def forward(self, x):
        shp = x.shape[:-1]
        p = x.reshape(-1, 3)
        xy = torch.stack([p[:, [0, 1]], p[:, [0, 2]], p[:, [1, 2]]])
        f = F.grid_sample(self.plane, xy.unsqueeze(2), align_corners=True, padding_mode="border")
        f = f.squeeze(-1).prod(0).t()
        v = F.grid_sample(self.line[None], p[None, None, None], mode="bilinear", align_corners=True)
        v = v.reshape(v.shape[1], -1).T
        y = self.mlp(torch.cat([f, v, self.encode(p)], 1))
        return y.reshape(*shp, 4)


class Model(nn.Module):
    def __init__(self, res=16, feat=6, freqs=3, coarse=16, fine=16):
        super().__init__()
        self.field = Field(res, feat, freqs)
        self.coarse, self.fine = coarse, fine
        self.bg = nn.Parameter(torch.full((3,), 0.5))
        self.pose = nn.Parameter(torch.zeros(6))
        self.register_buffer("occ", torch.zeros(8, 8, 8))

    def so3(self, w):
        th = torch.sqrt((w * w).sum() + 1e-12)
        z = torch.zeros_like(w[0])
        K = torch.stack([z, -w[2], w[1], w[2], z, -w[0], -w[1], w[0], z]).view(3, 3)
        I = torch.eye(3, device=w.device)
        return I + torch.sin(th) / th * K + (1 - th.cos()) / th.square() * (K @ K)

    def composite(self, raw, t, dirs):
        delta = torch.diff(t, dim=-1)
        delta = torch.cat([delta, torch.full_like(delta[..., :1], 1e3)], -1) * dirs.norm(dim=-1, keepdim=True)
        sigma = F.softplus(raw[..., 3] - 1)
        alpha = 1.0 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        w = alpha * trans
        rgb = (w[..., None] * torch.sigmoid(raw[..., :3])).sum(-2)
        acc = w.sum(-1)
        depth = (w * t).sum(-1) / acc.clamp(min=1e-6)
        return rgb + (1 - acc)[..., None] * self.bg, depth, acc, w

    def forward(self, o, d, jitter):
        R = self.so3(self.pose[:3] + 1e-3)
        rays = Rays(o + self.pose[3:], F.normalize(d, dim=-1) @ R.T, torch.full_like(o[:, :1], 0.2), o.new_full((o.shape[0], 1), 2.5))
        lin = torch.linspace(0, 1, self.coarse, device=o.device)
        t = 1 / (1 / rays.near * (1 - lin) + 1 / rays.far * lin)
        mids = 0.5 * (t[..., 1:] + t[..., :-1])
        up, lo = torch.cat([mids, t[..., -1:]], -1), torch.cat([t[..., :1], mids], -1)
        t = lo + (up - lo) * jitter[:, : self.coarse]
        pts = rays.o[:, None] + rays.d[:, None] * t[..., None]
        pts = torch.where(pts.norm(dim=-1, keepdim=True) > 1, (2 - 1 / pts.norm(dim=-1, keepdim=True)) * F.normalize(pts, dim=-1), pts) / 2
        raw = checkpoint(self.field, pts, use_reentrant=False)
        rgb0, dep0, _, w = self.composite(raw, t, rays.d)
        tf = sample_pdf(0.5 * (t[:, 1:] + t[:, :-1]), w[:, 1:-1].detach(), jitter[:, self.coarse:])
        tall, _ = torch.sort(torch.cat([t, tf.detach()], -1), -1)
        pts2 = torch.addcmul(rays.o[:, None], rays.d[:, None], tall.unsqueeze(-1)).clamp(-2, 2) / 2
        raw2 = self.field(pts2)
        rgb, depth, acc, w2 = self.composite(raw2, tall, rays.d)
        # distortion loss of mip-nerf 360 in O(n) by cumulative sums
        tm = 0.5 * (tall[:, 1:] + tall[:, :-1])
        ww = w2[:, :-1]
        bi = 2 * (ww * (tm * (ww.cumsum(-1) - ww) - ((ww * tm).cumsum(-1) - ww * tm))).sum(-1)
        uni = (ww.square() * torch.diff(tall)).sum(-1) / 3
        if self.training:
            with torch.no_grad():
                c = ((pts2 * 0.5 + 0.5) * 8).long().clamp_(0, 7)
                dens = F.softplus(raw2[..., 3])
                self.occ.mul_(0.95).index_put_(c.unbind(-1), dens * 0.05 / c[..., 0].numel(), accumulate=True)
        tv = (self.field.plane.diff(dim=-1) ** 2).mean() + self.field.plane.diff(dim=-2).abs().mean()
        return rgb, rgb0, depth, acc, (bi + uni).mean(), tv, self.occ.amax((1, 2)), dep0 * math.pi


def get_inputs():
    n = 64
    return [torch.randn(n, 3) * 0.2, torch.randn(n, 3), torch.rand(n, 32)]


def get_init_inputs():
    return [16, 6, 3, 16, 16]
