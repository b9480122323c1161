import torch
import torch.nn as nn
import torch.nn.functional as F


class HashGrid(nn.Module):
    """Multi-resolution hash encoding (Instant-NGP) in plain PyTorch. All levels are handled at once."""

    PRIMES = (1, 2654435761, 805459861)

    def __init__(self, n_levels, n_feat, log2_size, base_res, max_res):
        super().__init__()
        self.n_levels, self.n_feat, self.size = n_levels, n_feat, 2 ** log2_size
        growth = (max_res / base_res) ** (1.0 / (n_levels - 1))
        res = [int(base_res * growth ** l) for l in range(n_levels)]
        self.resolutions = res
        self.table = nn.Parameter((torch.rand(n_levels * self.size, n_feat) * 2 - 1) * 1e-1)
        corners = torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
        self.register_buffer("corners", corners, persistent=False)
        self.register_buffer("level_offset", torch.arange(n_levels) * self.size, persistent=False)

    def hash(self, c):
        h = c[..., 0] * self.PRIMES[0]
        h = h ^ (c[..., 1] * self.PRIMES[1])
        h = h ^ (c[..., 2] * self.PRIMES[2])
        return h & (self.size - 1)

    def forward(self, x):
        # x in [0, 1]^3, (n, 3)
        n = x.shape[0]
        res = torch.tensor(self.resolutions, dtype=torch.float32, device=x.device)
        pos = x.float()[:, None, :] * (res[None, :, None] - 1)           # n L 3
        floor = pos.floor()
        frac = pos - floor
        cell = floor.long()[:, :, None, :] + self.corners                # n L 8 3
        index = self.hash(cell) + self.level_offset[None, :, None]
        feats = self.table[index.view(-1)].view(n, self.n_levels, 8, self.n_feat)
        sel = self.corners.to(frac.dtype)
        w = (frac[:, :, None, :] * sel + (1 - frac[:, :, None, :]) * (1 - sel)).prod(-1)
        out = (feats * w[..., None].to(feats.dtype)).sum(dim=2)
        return out.reshape(n, -1)


def sh_encode(d):
    x, y, z = d.unbind(-1)
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    return torch.stack([
        torch.full_like(x, 0.28209479177387814),
        -0.48860251190291987 * y, 0.48860251190291987 * z, -0.48860251190291987 * x,
        1.0925484305920792 * xy, -1.0925484305920792 * yz,
        0.94617469575756008 * zz - 0.31539156525252005,
        -1.0925484305920792 * xz, 0.54627421529603959 * (xx - yy),
    ], dim=-1)


class Model(nn.Module):
    """Sample along rays, encode, small MLPs, alpha composite."""

    def __init__(self, n_samples, n_levels, n_feat, log2_size, base_res, max_res, hidden):
        super().__init__()
        self.n_samples = n_samples
        self.enc = HashGrid(n_levels, n_feat, log2_size, base_res, max_res)
        self.sigma_net = nn.Sequential(
            nn.Linear(n_levels * n_feat, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, 16, bias=False))
        self.color_net = nn.Sequential(
            nn.Linear(15 + 9, hidden, bias=False), nn.ReLU(),
            nn.Linear(hidden, hidden, bias=False), nn.ReLU(),
            nn.Linear(hidden, 3, bias=False))

    def forward(self, rays_o, rays_d, near, far):
        n = rays_o.shape[0]
        d = F.normalize(rays_d.float(), dim=-1)
        t = torch.linspace(0, 1, self.n_samples, device=rays_o.device)
        z = near.float() + (far.float() - near.float()) * t              # n S
        pts = rays_o.float()[:, None] + d[:, None] * z[..., None]
        inside = ((pts > 0) & (pts < 1)).all(-1)
        feat = self.enc(pts.clamp(0, 1).view(-1, 3))
        h = self.sigma_net(feat).view(n, self.n_samples, 16)
        sigma = torch.exp(h[..., 0].float().clamp(max=10.0)) * inside
        sh = sh_encode(d)[:, None].expand(-1, self.n_samples, -1).to(h.dtype)
        rgb = torch.sigmoid(self.color_net(torch.cat([h[..., 1:], sh], -1)).float())

        delta = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e-2)], dim=1)
        alpha = 1.0 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], dim=1), dim=1)[:, :-1]
        w = alpha * trans
        color = (w[..., None] * rgb).sum(1) + (1 - w.sum(1, keepdim=True))
        depth = (w * z).sum(1)
        return color, depth, w.sum(1)


def get_inputs():
    n = 4096
    return [torch.rand(n, 3) * 0.2 + 0.4, torch.randn(n, 3), torch.rand(n, 1) * 0.05, torch.rand(n, 1) * 0.5 + 0.3]


def get_init_inputs():
    return [64, 16, 2, 19, 16, 2048, 64]
