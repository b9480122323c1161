import torch
import torch.nn as nn


class Model(nn.Module):
    """Lennard-Jones energy, forces and virial with minimum image and a smooth switch."""

    def __init__(self, box, sigma, epsilon, r_on, r_cut):
        super().__init__()
        self.register_buffer("box", torch.tensor(box))
        self.sigma, self.epsilon = sigma, epsilon
        self.r_on2, self.r_cut2 = r_on ** 2, r_cut ** 2

    def forward(self, pos, kind, scale):
        # kind: per-atom type (long), scale: (n_types, n_types) well depth
        n = pos.shape[0]
        d = pos[:, None, :] - pos[None, :, :]
        d = d - self.box * torch.round(d / self.box)
        r2 = d.pow(2).sum(-1)
        r2 = r2 + torch.eye(n, device=pos.device) * 1e6
        eps = self.epsilon * scale[kind][:, kind]
        s6 = (self.sigma ** 2 / r2) ** 3
        u = 4.0 * eps * (s6 * s6 - s6)
        du = -24.0 * eps * (2.0 * s6 * s6 - s6) / r2      # (dU/dr)/r
        # CHARMM style switching in r^2
        c, o = self.r_cut2, self.r_on2
        den = (c - o) ** 3
        sw = (c - r2) ** 2 * (c + 2.0 * r2 - 3.0 * o) / den
        dsw = 12.0 * (c - r2) * (o - r2) / den            # (dS/dr)/r
        inner = r2 < o
        outer = r2 >= c
        sw = torch.where(inner, torch.ones_like(sw), sw).masked_fill(outer, 0.0)
        dsw = dsw.masked_fill(inner | outer, 0.0)
        fmag = -(du * sw + u * dsw)
        force = (fmag.unsqueeze(-1) * d).sum(dim=1)
        e_atom = 0.5 * (u * sw).sum(dim=1)
        virial = 0.5 * torch.einsum("ij,ija,ijb->ab", fmag, d, d)
        return e_atom, force, virial


def get_inputs():
    m = 6
    g = torch.arange(m, dtype=torch.float32)
    pos = torch.stack(torch.meshgrid(g, g, g, indexing="ij"), dim=-1).reshape(-1, 3) * 1.15
    pos = pos + 0.06 * (2 * torch.rand_like(pos) - 1)
    kind = torch.randint(0, 3, (pos.shape[0],))
    s = 0.6 + 0.4 * torch.rand(3, 3)
    return [pos, kind, 0.5 * (s + s.t())]


def get_init_inputs():
    return [[6.9, 6.9, 6.9], 1.0, 1.0, 2.0, 2.6]
