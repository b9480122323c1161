import torch
import torch.nn as nn
import torch.nn.functional as F


class Embedder(nn.Module):
    def __init__(self, num_freqs, include_input=True):
        super().__init__()
        self.include_input = include_input
        self.register_buffer("freq_bands", 2.0 ** torch.linspace(0.0, num_freqs - 1, num_freqs))
        self.out_dim = 3 * (2 * num_freqs + (1 if include_input else 0))

    def forward(self, x):
        out = [x] if self.include_input else []
        for i in range(self.freq_bands.shape[0]):
            for fn in (torch.sin, torch.cos):
                out.append(fn(x * self.freq_bands[i]))
        return torch.cat(out, -1)


class NeRF(nn.Module):
    def __init__(self, D, W, input_ch, input_ch_views, skips=(2,)):
        super().__init__()
        self.skips = skips
        self.pts_linears = nn.ModuleList(
            [nn.Linear(input_ch, W)]
            + [nn.Linear(W + input_ch if i in skips else W, W) for i in range(D - 1)]
        )
        self.views_linears = nn.ModuleList([nn.Linear(input_ch_views + W, W // 2)])
        self.feature_linear = nn.Linear(W, W)
        self.alpha_linear = nn.Linear(W, 1)
        self.rgb_linear = nn.Linear(W // 2, 3)

    def forward(self, pts, views):
        h = pts
        for i, l in enumerate(self.pts_linears):
            h = F.relu(l(h))
            if i in self.skips:
                h = torch.cat([pts, h], -1)
        alpha = self.alpha_linear(h)
        feature = self.feature_linear(h)
        h = torch.cat([feature, views], -1)
        for l in self.views_linears:
            h = F.relu(l(h))
        return torch.cat([self.rgb_linear(h), alpha], -1)


def raw2outputs(raw, z_vals, rays_d, noise, white_bkgd=True):
    dists = z_vals[..., 1:] - z_vals[..., :-1]
    dists = torch.cat([dists, torch.full_like(dists[..., :1], 1e10)], -1)
    dists = dists * torch.norm(rays_d[..., None, :], dim=-1)
    rgb = torch.sigmoid(raw[..., :3])
    alpha = 1.0 - torch.exp(-F.softplus(raw[..., 3] + noise) * dists)
    ones = torch.ones((alpha.shape[0], 1), device=alpha.device)
    T = torch.cumprod(torch.cat([ones, 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * T
    rgb_map = torch.sum(weights[..., None] * rgb, -2)
    depth_map = torch.sum(weights * z_vals, -1)
    acc_map = torch.sum(weights, -1)
    if white_bkgd:
        rgb_map = rgb_map + (1.0 - acc_map[..., None])
    return rgb_map, depth_map, acc_map, weights


class Model(nn.Module):
    """NeRF: positional encoding, skip MLP with view branch, volume rendering
    along stratified samples; MSE plus a distortion regulariser."""

    def __init__(self, depth, width, n_samples, multires, multires_views, near, far):
        super().__init__()
        self.embed = Embedder(multires)
        self.embed_dirs = Embedder(multires_views)
        self.nerf = NeRF(depth, width, self.embed.out_dim, self.embed_dirs.out_dim)
        t = torch.linspace(0.0, 1.0, steps=n_samples)
        self.register_buffer("z_base", near * (1.0 - t) + far * t)

    def forward(self, rays_o, rays_d, jitter, noise, target):
        N = rays_o.shape[0]
        viewdirs = rays_d / torch.norm(rays_d, dim=-1, keepdim=True)
        z_vals = self.z_base.expand(N, -1)
        mids = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
        upper = torch.cat([mids, z_vals[..., -1:]], -1)
        lower = torch.cat([z_vals[..., :1], mids], -1)
        z_vals = lower + (upper - lower) * jitter

        pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
        flat = pts.reshape(-1, 3)
        dirs = viewdirs[:, None].expand(pts.shape).reshape(-1, 3)
        raw = self.nerf(self.embed(flat), self.embed_dirs(dirs))
        raw = raw.reshape(N, -1, 4)
        rgb, depth, acc, weights = raw2outputs(raw, z_vals, rays_d, noise)

        mse = ((rgb - target) ** 2).mean()
        w = weights[:, :-1]
        m = 0.5 * (z_vals[:, 1:] + z_vals[:, :-1])
        delta = z_vals[:, 1:] - z_vals[:, :-1]
        inter = (w[:, :, None] * w[:, None, :] * (m[:, :, None] - m[:, None, :]).abs()).sum((1, 2))
        dist = (inter + (w ** 2 * delta).sum(-1) / 3).mean()
        return mse + 0.01 * dist, rgb, depth, acc


def get_inputs():
    g = torch.Generator().manual_seed(11)
    N, S = 193, 61
    d = torch.randn(N, 3, generator=g) * 0.3 + torch.tensor([0.0, 0.0, -1.0])
    return [0.1 * torch.randn(N, 3, generator=g), d, torch.rand(N, S, generator=g),
            0.1 * torch.randn(N, S, generator=g), torch.rand(N, 3, generator=g)]


def get_init_inputs():
    return [6, 160, 61, 10, 4, 2.0, 6.0]
