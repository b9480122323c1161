import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Molecular dynamics: periodic box, Lennard-Jones with a switching function, learned charges,
    velocity Verlet with in place updates, Nose-Hoover thermostat, rdf histogram, cell list counts."""

    def __init__(self, n_types=3, box=6.0, steps=4):
        super().__init__()
        self.box, self.steps = box, steps
        self.log_eps = nn.Parameter(torch.zeros(n_types))
        self.sigma = nn.Parameter(torch.full((n_types,), 0.8))
        self.charge = nn.Parameter(torch.tensor([0.2, -0.2, 0.0])[:n_types])
        self.masses = nn.Parameter(torch.tensor([1.0, 2.0, 4.0])[:n_types], requires_grad=False)
        self.Q = 10.0
        self.register_buffer("xi", torch.zeros(()))
        self.register_buffer("rdf", torch.zeros(20))
        self.register_buffer("nframes", torch.zeros((), dtype=torch.long))

    def pair(self, pos):
        d = pos.unsqueeze(1) - pos.unsqueeze(0)
        d = d - self.box * torch.round(d.detach() / self.box)
        return d

    def energy_force(self, pos, kind):
        n = pos.shape[0]
        d = self.pair(pos)
        r2 = d.square().sum(-1)
        eye = torch.eye(n, dtype=torch.bool, device=pos.device)
        r2 = r2.masked_fill(eye, 1e6).clamp(min=0.3)
        eps = self.log_eps.exp()
        e = torch.sqrt(eps[kind][:, None] * eps[kind][None, :])
        s = 0.5 * (self.sigma[kind].unsqueeze(1) + self.sigma[kind])
        inv = (s * s / r2) ** 3
        r = r2.sqrt()
        x = ((r - 2.0) / 1.0).clamp(0, 1)
        sw = 1 - x * x * x * (10 - 15 * x + 6 * x * x)
        dsw = torch.where((r > 2.0) & (r < 3.0), -30 * x * x * (1 - x) ** 2, torch.zeros_like(x))
        u = 4 * e * (inv * inv - inv)
        du = 4 * e * (-12 * inv * inv + 6 * inv) / r
        qq = torch.outer(self.charge[kind], self.charge[kind])
        u = u + qq / r * torch.exp(-r)
        du = du - qq * torch.exp(-r) * (1 / r2 + 1 / r)
        mag = du * sw + u * dsw
        mag = mag.masked_fill(eye, 0.0).clamp(-50, 50)
        force = -(mag / r).unsqueeze(-1) * d
        return 0.5 * (u * sw).masked_fill(eye, 0).sum(), force.sum(1), r

    def forward(self, pos, vel, kind):
        n = pos.shape[0]
        m = self.masses[kind].unsqueeze(1)
        p = torch.remainder(pos * self.box, self.box)
        v = vel - (m * vel).sum(0) / m.sum()
        dt = 0.005
        E, f, r = self.energy_force(p, kind)
        log = torch.empty(self.steps, 3, device=pos.device, dtype=pos.dtype)
        xi = self.xi.clone()
        for i in range(self.steps):
            v = v + 0.5 * dt * (f / m - xi * v)
            p = p + dt * v
            p = p % self.box
            E, f, r = self.energy_force(p, kind)
            v = (v + 0.5 * dt * f / m) / (1 + 0.5 * dt * xi)
            kin = 0.5 * (m * v * v).sum()
            xi = xi + dt * (2 * kin / (3 * n) - 1.0) / self.Q
            log[i] = torch.stack([E, kin, E + kin])
        # cell list: integer coordinates packed in one key, counted by scatter
        cell = torch.floor(p.detach() / self.box * 4).long().clamp(0, 3)
        key = (cell[:, 0] << 4) | (cell[:, 1] << 2) | cell[:, 2]
        counts = torch.zeros(64, dtype=torch.int32, device=pos.device)
        counts.scatter_add_(0, key, torch.ones(n, dtype=torch.int32, device=pos.device))
        order = torch.argsort(key, stable=True)
        starts = torch.searchsorted(key[order].contiguous(), torch.arange(64, device=pos.device))
        # radial distribution
        iu = torch.triu_indices(n, n, 1, device=pos.device)
        rr = r[iu[0], iu[1]]
        bins = (rr.detach() / 3.0 * 20).long().clamp(max=20)
        hist = torch.zeros(21, device=pos.device).index_add_(0, bins, torch.ones_like(rr))[:20]
        edges = torch.linspace(0, 3, 21, device=pos.device)
        shell = 4.18879 * (edges[1:] ** 3 - edges[:-1] ** 3) * n * (n - 1) / 2 / self.box ** 3
        if self.training:
            self.rdf += hist / shell
            self.nframes += 1
            self.xi.copy_(xi.detach())
        soft = torch.exp(-(rr[:, None] - edges[None, 1:]).square() * 20).sum(0)
        iner = torch.einsum("ni,nj->ij", p - p.mean(0), p - p.mean(0)) / n
        gyr = torch.linalg.eigvalsh(iner.double()).float()
        L = torch.cross(p, m * v, dim=-1).sum(0)
        com = (m * v.abs()).sum(0)
        return p, v, log, counts, starts, soft, gyr, L, com, self.rdf / self.nframes.clamp(min=1)


def get_inputs():
    return [torch.rand(64, 3), torch.randn(64, 3), torch.randint(0, 3, (64,))]


def get_init_inputs():
    return [3, 6.0, 4]
