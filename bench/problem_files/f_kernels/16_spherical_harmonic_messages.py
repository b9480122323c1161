import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, species, ch, radial, cutoff, molecules):
        super().__init__()
        self.ch, self.cutoff, self.molecules = ch, cutoff, molecules
        self.embed = nn.Embedding(species, ch)
        self.shift = nn.Embedding(species, 1)
        self.freq = nn.Parameter(torch.pi * torch.arange(1, radial + 1, dtype=torch.float32))
        self.filter = nn.Sequential(nn.Linear(radial, 32), nn.SiLU(), nn.Linear(32, 3 * ch))
        self.mix = nn.Parameter(torch.randn(3, ch, ch) * ch ** -0.5)
        self.path = nn.Parameter(torch.randn(5, ch))
        self.read = nn.Sequential(nn.Linear(5 * ch, 27), nn.Softplus(), nn.Linear(27, 1))

    def harmonics(self, u):
        x, y, z = u.unbind(-1)
        s3, s15, s5 = 3 ** 0.5, 15 ** 0.5, 5 ** 0.5
        one = torch.stack((y, z, x), -1) * s3
        two = torch.stack((s15 * x * y, s15 * y * z, s5 / 2 * (3 * z * z - 1), s15 * x * z, s15 / 2 * (x * x - y * y)), -1)
        return torch.ones_like(x).unsqueeze(-1), one, two

    def forward(self, z, pos, src, dst, mol, cell):
        n = pos.shape[0]
        vec = pos[src] - pos[dst]
        frac = torch.linalg.solve(cell, vec.T).T
        vec = vec - frac.round() @ cell.T
        r = torch.sqrt(vec.square().sum(-1) + 1e-6)
        x = (r / self.cutoff).clamp(max=1.0)
        env = 1 - 28 * x ** 6 + 48 * x ** 7 - 21 * x ** 8
        bessel = (2 / self.cutoff) ** 0.5 * torch.sin(self.freq * x.unsqueeze(-1)) / r.unsqueeze(-1)
        w = self.filter(bessel * env.unsqueeze(-1)) * env.unsqueeze(-1)
        w = w.view(-1, 3, self.ch)
        h = self.embed(z)
        feats = []
        for l, sh in enumerate(self.harmonics(vec / r.unsqueeze(-1))):
            m = (h[src] * w[:, l]).unsqueeze(-1) * sh.unsqueeze(1)
            a = pos.new_zeros(n, self.ch, sh.shape[-1]).index_add(0, dst, m)
            feats.append(torch.einsum("ncm,cd->ndm", a, self.mix[l]))
        s, v, t = feats
        s0 = s.squeeze(-1)
        vv = v.square().sum(-1) * self.path[0]
        tt = t.square().sum(-1) * self.path[1]
        rolled = v.roll(1, dims=1)
        outer = torch.linalg.cross(v, rolled, dim=-1)
        q = torch.stack((v[..., 2] * v[..., 0], v[..., 0] * v[..., 1], v[..., 1].square() - v[..., 2] * v[..., 0], v[..., 1] * v[..., 2], v[..., 2].square() - v[..., 0].square()), -1)
        tri = (q * t).sum(-1) * self.path[2]
        pseudo = (outer * rolled.roll(1, dims=1)).sum(-1) * self.path[3]
        inv = torch.cat((s0, vv, tt, torch.tanh(tri), torch.tanh(pseudo)), -1)
        e = self.read(F.silu(inv)) + self.shift(z)
        energy = pos.new_zeros(self.molecules, 1).index_add(0, mol, e)
        dipole = (v * torch.tanh(s * self.path[4].unsqueeze(-1))).mean(1)
        dip = pos.new_zeros(self.molecules, 3).index_add(0, mol, dipole)
        return energy.squeeze(-1), dip, dip.norm(dim=-1)


def get_inputs():
    n, e = 151, 2003
    cell = torch.eye(3) * 7 + 0.4 * torch.randn(3, 3)
    src = torch.randint(0, n, (e,))
    dst = (src + torch.randint(1, n, (e,))) % n
    return [torch.randint(0, 6, (n,)), 7 * torch.rand(n, 3), src, dst, torch.sort(torch.randint(0, 5, (n,))).values, cell]


def get_init_inputs():
    return [6, 22, 9, 5.0, 5]
