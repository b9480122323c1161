import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Envelope(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p + 1
        self.a, self.b, self.c = -(p + 2) * (p + 3) / 2, (p + 1) * (p + 3), -(p + 1) * (p + 2) / 2

    def forward(self, x):
        x0 = x.pow(self.p - 1)
        return (1.0 / x + self.a * x0 + self.b * x0 * x + self.c * x0 * x * x) * (x < 1.0).to(x.dtype)


def spherical_jn(l, x):
    j0, j1 = torch.sin(x) / x, torch.sin(x) / x ** 2 - torch.cos(x) / x
    for n in range(1, l + 1):
        j0, j1 = j1, (2 * n + 1) / x * j1 - j0
    return j0


class ResidualLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.l1, self.l2 = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        return x + F.silu(self.l2(F.silu(self.l1(x))))


class Interaction(nn.Module):
    def __init__(self, d, d_int, d_basis, n_sbf, n_rad, n_before, n_after):
        super().__init__()
        dims = [(n_rad, d_basis), (d_basis, d), (n_sbf, d_basis), (d_basis, d_int), (d, d_int), (d_int, d)]
        self.rbf1, self.rbf2, self.sbf1, self.sbf2, self.down, self.up = [
            nn.Linear(a, b, bias=False) for a, b in dims]
        self.kj, self.ji, self.lin = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.before, self.after = [nn.Sequential(*[ResidualLayer(d)] * n) for n in (n_before, n_after)]

    def forward(self, x, rbf, sbf, idx_kj, idx_ji):
        x_ji, x_kj = F.silu(self.ji(x)), F.silu(self.kj(x))
        x_kj = F.silu(self.down(x_kj * self.rbf2(self.rbf1(rbf))))
        x_kj = x_kj.index_select(0, idx_kj) * self.sbf2(self.sbf1(sbf))
        agg = torch.zeros(x.shape[0], x_kj.shape[1], device=x.device, dtype=x_kj.dtype)
        agg.index_add_(0, idx_ji, x_kj)
        return self.after(F.silu(self.lin(self.before(x_ji + F.silu(self.up(agg))))) + x)


class Output(nn.Module):
    def __init__(self, d, d_out, n_rad, n_layers):
        super().__init__()
        dims = (n_rad, d), (d, d_out), (d_out, 1)
        self.rbf, self.up, self.out = [nn.Linear(a, b, bias=False) for a, b in dims]
        self.lins = nn.ModuleList([nn.Linear(d_out, d_out) for _ in range(n_layers)])

    def forward(self, x, rbf, i, n):
        x = self.up(x.new_zeros(n, x.shape[1]).index_add(0, i, self.rbf(rbf) * x))
        for lin in self.lins:
            x = F.silu(lin(x))
        return self.out(x)


class Model(nn.Module):
    """DimeNet++: directional message passing over edge triplets with Bessel and Legendre bases."""

    def __init__(self, n_atom, d, d_int, d_basis, d_out, n_blocks, n_sph, n_rad, cutoff, n_mol):
        super().__init__()
        self.cutoff, self.n_sph, self.n_mol, self.env = cutoff, n_sph, n_mol, Envelope(5)
        self.freq = nn.Parameter(torch.arange(1, n_rad + 1).float() * math.pi)
        roots = torch.arange(1, n_rad + 1)[None] + torch.arange(n_sph)[:, None] / 2
        self.register_buffer("roots", roots * math.pi)
        self.emb, sizes = nn.Embedding(n_atom, d), (d, d_int, d_basis, n_sph * n_rad, n_rad, 1, 2)
        self.rbf_lin, self.edge_lin = nn.Linear(n_rad, d), nn.Linear(3 * d, d)
        self.inter = nn.ModuleList([Interaction(*sizes) for _ in range(n_blocks)])
        self.outs = nn.ModuleList([Output(d, d_out, n_rad, 3) for _ in range(n_blocks + 1)])

    def sph_basis(self, dist, angle, idx_kj):
        d = dist.unsqueeze(-1)
        radial = [spherical_jn(l, d * r) * r for l, r in enumerate(self.roots.unbind(0))]
        radial = self.env(dist)[:, None, None] * torch.stack(radial, dim=1)
        c = torch.cos(angle)
        leg = [torch.ones_like(c), c]
        for l in range(2, self.n_sph):
            leg.append(((2 * l - 1) * c * leg[-1] - (l - 1) * leg[-2]) / l)
        y = torch.stack([p * math.sqrt((2 * l + 1) / (4 * math.pi)) for l, p in enumerate(leg)], dim=1)
        return (radial[idx_kj] * y.unsqueeze(-1)).flatten(1)

    def forward(self, z, pos, edge, idx_kj, idx_ji, batch, target):
        j, i = edge.unbind(0)
        vec = pos[j] - pos[i]
        dist = ((vec.pow(2).sum(-1) + 1e-4).sqrt() / self.cutoff).clamp(min=0.2)
        a, b = vec[idx_ji], -vec[idx_kj]
        angle = torch.atan2(torch.cross(a, b, dim=1).norm(dim=-1) + 1e-4, (a * b).sum(dim=-1))
        rbf = self.env(dist).unsqueeze(-1) * torch.sin(self.freq * dist.unsqueeze(-1))
        sbf = self.sph_basis(dist, angle, idx_kj)
        h = self.emb(z)
        x = F.silu(self.edge_lin(torch.cat([h[i], h[j], F.silu(self.rbf_lin(rbf))], dim=-1)))
        p = self.outs[0](x, rbf, i, len(z))
        for inter, out in zip(self.inter, self.outs[1:]):
            x = inter(x, rbf, sbf, idx_kj, idx_ji)
            p = p + out(x, rbf, i, len(z))
        energy = p.new_zeros(self.n_mol, 1).index_add_(0, batch, p).squeeze(1)
        return (energy - target).abs().mean(), energy, p


def get_inputs():
    n, e, t = 131, 1047, 5003
    i = torch.randint(0, n, (e,))
    j = (i + torch.randint(1, n, (e,))) % n
    kj, ji = torch.randint(0, e, (2, t))
    return [torch.randint(0, 95, (n,)), torch.randn(n, 3) * 1.5, torch.stack([j, i]), kj, ji,
            torch.sort(torch.randint(0, 7, (n,)))[0], torch.randn(7)]


def get_init_inputs():
    return [95, 128, 64, 8, 256, 4, 5, 6, 5.0, 7]
