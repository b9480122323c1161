import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


class HashGrid(nn.Module):
    PRIMES = (1, 2654435761, 805459861)

    def __init__(self, levels, log2_size, feats, base=8, growth=1.5):
        super().__init__()
        self.size = 2 ** log2_size
        self.res = [int(base * growth ** i) for i in range(levels)]
        self.tables = nn.ParameterList(
            [nn.Parameter(torch.empty(self.size, feats).uniform_(-0.5, 0.5)) for _ in range(levels)])
        self.register_buffer("corners", torch.tensor(list(itertools.product((0, 1), repeat=3))))

    def _hash(self, ijk, res):
        if (res + 1) ** 3 <= self.size:
            return ijk[..., 0] + (res + 1) * (ijk[..., 1] + (res + 1) * ijk[..., 2])
        h = ijk[..., 0] * self.PRIMES[0]
        for d in (1, 2):
            h = torch.bitwise_xor(h, ijk[..., d] * self.PRIMES[d])
        return h & (self.size - 1)

    def forward(self, x):
        out = []
        for res, table in zip(self.res, self.tables):
            p = x * res
            lo = p.floor()
            frac = p - lo
            ijk = lo.long().unsqueeze(-2) + self.corners
            w = torch.where(self.corners.bool(), frac.unsqueeze(-2), 1 - frac.unsqueeze(-2)).prod(-1)
            out.append((table[self._hash(ijk, res)] * w.unsqueeze(-1)).sum(-2))
        return torch.cat(out, -1)


def sh_basis(d):
    x, y, z = d.unbind(-1)
    return torch.stack([torch.full_like(x, 0.2821), 0.4886 * y, 0.4886 * z, 0.4886 * x,
                        1.0925 * x * y, 1.0925 * y * z, 0.3154 * (3 * z * z - 1),
                        1.0925 * x * z, 0.5463 * (x * x - y * y)], -1)


class Model(nn.Module):
    """Instant-NGP style field with integer hashing, importance resampling and volume rendering."""

    def __init__(self, levels, log2_size, feats, hidden, n_coarse, n_fine, occ=16):
        super().__init__()
        self.grid = HashGrid(levels, log2_size, feats)
        self.sigma_net = nn.Sequential(nn.Linear(levels * feats, hidden), nn.ReLU(), nn.Linear(hidden, 8))
        self.rgb_net = nn.Sequential(nn.Linear(7 + 9, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        self.background = nn.Parameter(torch.zeros(3))
        self.n_coarse, self.n_fine, self.occ = n_coarse, n_fine, occ
        self.register_buffer("occupancy", torch.zeros(occ ** 3))

    def field(self, o, d, t):
        pts = o.unsqueeze(1) + d.unsqueeze(1) * t.unsqueeze(-1)
        unit = (pts * 0.25 + 0.5).clamp(0, 1 - 1e-4)
        h = self.sigma_net(self.grid(unit))
        sigma = F.softplus(h[..., 0] + 1.0)
        return unit, sigma, h[..., 1:]

    @staticmethod
    def weights(sigma, t):
        delta = torch.cat((t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 0.2)), 1)
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(F.pad(1 - alpha + 1e-10, (1, 0), value=1.0), dim=1)
        return alpha * trans[:, :-1], trans[:, -1]

    @torch.no_grad()
    def resample(self, t, w, n):
        mids = 0.5 * (t[:, 1:] + t[:, :-1])
        pdf = w[:, 1:-1] + 1e-3
        cdf = F.pad((pdf / pdf.sum(1, keepdim=True)).cumsum(1), (1, 0))
        u = torch.linspace(0.02, 0.98, n, device=t.device).expand(t.shape[0], n).contiguous()
        hi = torch.searchsorted(cdf, u, right=True).clamp(1, cdf.shape[1] - 1)
        lo = hi - 1
        c0, c1 = cdf.gather(1, lo), cdf.gather(1, hi)
        m0, m1 = mids.gather(1, lo), mids.gather(1, hi)
        return m0 + (u - c0) / (c1 - c0).clamp_min(1e-6) * (m1 - m0)

    def forward(self, rays_o, rays_d, near=0.3, far=2.3):
        o = torch.tanh(rays_o) * 0.4
        d = F.normalize(rays_d, dim=-1)
        t0 = torch.linspace(near, far, self.n_coarse, device=o.device).expand(len(o), -1)
        _, s0, _ = self.field(o, d, t0)
        w0, _ = self.weights(s0.detach(), t0)
        t, _ = torch.sort(torch.cat((t0, self.resample(t0, w0, self.n_fine)), 1), dim=1)
        unit, sigma, geo = self.field(o, d, t)
        dirs = sh_basis(d).unsqueeze(1).expand(-1, t.shape[1], -1)
        rgb = self.rgb_net(torch.cat((geo, dirs), -1)).sigmoid()
        w, t_left = self.weights(sigma, t)
        color = (w.unsqueeze(-1) * rgb).sum(1) + t_left[:, None] * self.background.sigmoid()
        depth = (w * t).sum(1) / w.sum(1).clamp_min(1e-5)
        with torch.no_grad():
            c = (unit * self.occ).long().flatten(0, 1)
            cell = (c[:, 0] * self.occ + c[:, 1]) * self.occ + c[:, 2]
            self.occupancy.mul_(0.95).scatter_reduce_(0, cell, sigma.flatten(), "amax")
        return {"rgb": color, "depth": depth, "acc": 1 - t_left, "occ_mean": self.occupancy.mean()}


def get_inputs():
    return [torch.randn(96, 3), torch.randn(96, 3)]


def get_init_inputs():
    return [6, 12, 2, 32, 16, 16]
