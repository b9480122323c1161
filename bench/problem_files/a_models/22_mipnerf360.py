import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def contract(mean, var):
    n2 = mean.pow(2).sum(-1, keepdim=True).clamp(min=1e-3)
    n, far = n2.sqrt(), n2 > 1
    scale, deriv = torch.where(far, (2 * n - 1) / n2, 1.0), torch.where(far, 1 / n2, 1.0)
    u2 = mean.pow(2) / n2
    return mean * scale, var * (u2 * deriv + (1 - u2) * scale).pow(2)


def conical(tdist, origins, dirs, radii):
    t0, t1 = tdist[..., :-1], tdist[..., 1:]
    mu, hw = (t0 + t1) / 2, (t1 - t0) / 2
    den = 3 * mu ** 2 + hw ** 2
    t_mean = mu + 2 * mu * hw ** 2 / den
    t_var = hw ** 2 / 3 - (4 / 15) * (hw ** 4 * (12 * mu ** 2 - hw ** 2)) / den ** 2
    r_var = radii ** 2 * (mu ** 2 / 4 + (5 / 12) * hw ** 2 - (4 / 15) * hw ** 4 / den)
    d_out = dirs[:, None] ** 2
    null = 1 - d_out / d_out.sum(-1, keepdim=True).clamp(min=1e-8)
    mean = origins[:, None] + t_mean[..., None] * dirs[:, None]
    return mean, t_var[..., None] * d_out + r_var[..., None] * null


class FieldMLP(nn.Module):
    def __init__(self, basis, n_freq, width, depth, rgb):
        super().__init__()
        self.register_buffer("basis", basis)
        self.register_buffer("scales", 2.0 ** torch.arange(n_freq))
        d = 2 * n_freq * basis.shape[1]
        self.layers = nn.ModuleList([nn.Linear(d if i == 0 else width + (d if i == depth // 2 else 0), width)
                                     for i in range(depth)])
        self.sigma, self.rgb = nn.Linear(width, 1), rgb
        if rgb:
            self.bottle, self.view, self.out = nn.Linear(width, 64), nn.Linear(91, 128), nn.Linear(128, 3)

    def forward(self, mean, var, dirs_enc):
        m = ((mean @ self.basis).unsqueeze(-2) * self.scales.unsqueeze(-1)).flatten(-2)
        v = ((var @ self.basis.pow(2)).unsqueeze(-2) * self.scales.pow(2).unsqueeze(-1)).flatten(-2)
        x = enc = torch.exp(-0.5 * torch.cat([v, v], -1)) * torch.sin(torch.cat([m, m + 0.5 * math.pi], -1))
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([x, enc], dim=-1) if i == len(self.layers) // 2 else x))
        sigma = F.softplus(self.sigma(x).squeeze(-1) - 1.0)
        if not self.rgb:
            return sigma, None
        h = torch.cat([self.bottle(x), dirs_enc.unsqueeze(1).expand(-1, x.shape[1], -1)], dim=-1)
        return sigma, torch.sigmoid(self.out(F.relu(self.view(h)))) * (1 + 2 * 0.001) - 0.001


def weights_of(sigma, tdist, dirs):
    dd = sigma * (tdist[..., 1:] - tdist[..., :-1]) * dirs.norm(dim=-1, keepdim=True)
    trans = torch.exp(-F.pad(torch.cumsum(dd[..., :-1], dim=-1), (1, 0)))
    return (1 - torch.exp(-dd)) * trans


def resample(s, w, n, anneal):
    w = torch.softmax(anneal * torch.log(w + 1e-3), dim=-1)
    cdf = F.pad(F.pad(torch.cumsum(w, dim=-1).clamp(max=1)[..., :-1], (1, 0)), (0, 1), value=1.0)
    u = torch.linspace(0.5 / n, 1 - 0.5 / n, n, device=s.device, dtype=s.dtype).repeat(len(s), 1)
    hi = torch.searchsorted(cdf.contiguous(), u, right=True).clamp(1, cdf.shape[-1] - 1)
    c0, c1, s0, s1 = [torch.gather(x, 1, i) for x in (cdf, s) for i in (hi - 1, hi)]
    c = s0 + ((u - c0) / (c1 - c0).clamp(min=1e-5)).clamp(0, 1) * (s1 - s0)
    mid = (c[..., 1:] + c[..., :-1]) / 2
    return torch.cat([2 * c[..., :1] - mid[..., :1], mid, 2 * c[..., -1:] - mid[..., -1:]], -1).clamp(0, 1)


class Model(nn.Module):
    """mip-NeRF 360: proposal resampling in disparity, IPE, contraction, interlevel and distortion losses."""

    def __init__(self, n_freq, n_prop, n_fine, w_prop, w_nerf, near, far):
        super().__init__()
        g = (1 + 5 ** 0.5) / 2
        pts = torch.tensor([[a, b * g, 0.0] for a in (1, -1) for b in (1, -1)])
        pts = torch.cat([pts, pts.roll(1, 1), pts.roll(2, 1)])
        basis = (pts[pts @ torch.tensor([1.0, 0.5, 0.25]) > 0] / (1 + g * g) ** 0.5).t().contiguous()
        self.prop, self.nerf = [FieldMLP(basis, n_freq, *s) for s in ((w_prop, 4, False), (w_nerf, 8, True))]
        self.n_prop, self.n_fine, self.near, self.far = n_prop, n_fine, near, far
        self.bg = nn.Parameter(torch.zeros(3))

    def forward(self, origins, dirs, radii, target):
        v = F.normalize(dirs, dim=-1)
        f = 2.0 ** torch.arange(4, device=v.device, dtype=v.dtype)
        xb = (v.unsqueeze(1) * f.view(1, 4, 1)).flatten(1)
        enc = torch.cat([v, xb.sin(), xb.cos()], dim=-1)
        s = torch.linspace(0, 1, self.n_prop + 1, device=v.device, dtype=v.dtype).expand(len(v), -1)
        hist = []
        for level, n in enumerate((None, self.n_prop, self.n_fine)):
            if n is not None:
                s = resample(s, hist[-1][1].detach(), n, (0.7, 0.9)[level - 1])
            t = 1 / (s / self.far + (1 - s) / self.near)
            field = self.nerf if level == 2 else self.prop
            sigma, rgb = field(*contract(*conical(t, origins, dirs, radii)), enc)
            hist.append((s, weights_of(sigma, t, dirs)))
        w, acc = hist[-1][1], hist[-1][1].sum(-1, keepdim=True)
        color = (w.unsqueeze(-1) * rgb).sum(1) + (1 - acc) * torch.sigmoid(self.bg)
        inter = 0.0
        for sp, wp in hist[:-1]:
            cum = F.pad(torch.cumsum(wp, -1), (1, 0))
            lo = (sp.unsqueeze(1) <= s[:, :-1, None]).sum(-1).sub(1).clamp(min=0)
            hi = (sp.unsqueeze(1) < s[:, 1:, None]).sum(-1).clamp(max=wp.shape[-1])
            bound = torch.gather(cum, 1, hi) - torch.gather(cum, 1, lo)
            inter = inter + ((w.detach() - bound).clamp(min=0).pow(2) / (w.detach() + 1e-3)).sum(-1).mean()
        mid = (s[:, 1:] + s[:, :-1]) / 2
        pair = (w.unsqueeze(1) * (mid.unsqueeze(2) - mid.unsqueeze(1)).abs()).sum(-1)
        dist = (w * pair).sum(-1) + (w.pow(2) * s.diff(dim=1)).sum(-1) / 3
        data = torch.sqrt((color - target).pow(2) + 1e-6).mean()
        return data + inter + 0.01 * dist.mean(), color, (w * mid).sum(-1) / acc.squeeze(-1).clamp(min=1e-2)


def get_inputs():
    n = 301
    return [torch.randn(n, 3) * 0.2, torch.randn(n, 3), torch.rand(n, 1) * 0.01 + 1e-3, torch.rand(n, 3)]


def get_init_inputs():
    return [8, 33, 24, 128, 448, 0.2, 100.0]
