import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Small NeRF with degree-2 spherical-harmonic colour heads: positional encoding,
    skip MLP, volume rendering with transmittance, expected depth and opacity."""

    def __init__(self, n_freq, hidden, near, far, n_samples):
        super().__init__()
        self.near, self.far, self.S = near, far, n_samples
        self.register_buffer("freq", 2.0 ** torch.arange(n_freq) * math.pi * 0.5)
        d_in = 3 + 6 * n_freq
        self.l1 = nn.Linear(d_in, hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.l3 = nn.Linear(hidden + d_in, hidden)
        self.sigma = nn.Linear(hidden, 1)
        self.sh = nn.Linear(hidden, 27)

    def encode(self, x):
        ang = x.unsqueeze(-1) * self.freq
        return torch.cat((x, torch.sin(ang).flatten(-2), torch.cos(ang).flatten(-2)), dim=-1)

    @staticmethod
    def sh_basis(d):
        x, y, z = d.unbind(-1)
        return torch.stack((
            torch.full_like(x, 0.28209479), -0.48860251 * y, 0.48860251 * z, -0.48860251 * x,
            1.09254843 * x * y, -1.09254843 * y * z, 0.31539157 * (3 * z * z - 1.0),
            -1.09254843 * x * z, 0.54627421 * (x * x - y * y)), dim=-1)

    def forward(self, origins, dirs, jitter):
        R = origins.shape[0]
        edges = torch.linspace(self.near, self.far, self.S + 1, device=origins.device)
        t = edges[:-1] + (edges[1:] - edges[:-1]) * jitter
        pts = origins[:, None] + t[..., None] * dirs[:, None]
        e = self.encode(pts)
        h = F.relu(self.l1(e))
        h = F.relu(self.l2(h))
        h = F.relu(self.l3(torch.cat((h, e), dim=-1)))
        sigma = F.softplus(self.sigma(h).squeeze(-1) + 0.5)
        coef = self.sh(h).view(R, self.S, 3, 9)
        rgb = torch.sigmoid((coef * self.sh_basis(dirs).view(R, 1, 1, 9)).sum(-1))
        delta = torch.cat((t[:, 1:] - t[:, :-1], self.far - t[:, -1:]), dim=1)
        alpha = 1.0 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-7), dim=1), dim=1)[:, :-1]
        w = alpha * trans
        acc = w.sum(-1)
        color = (w.unsqueeze(-1) * rgb).sum(1) + (1.0 - acc).unsqueeze(-1)
        return color, (w * t).sum(-1), acc


def get_inputs():
    R, S = 150, 24
    d = torch.randn(R, 3)
    return [0.5 * torch.randn(R, 3), d / d.norm(dim=-1, keepdim=True), torch.rand(R, S)]


def get_init_inputs():
    return [6, 64, 0.2, 3.0, 24]
