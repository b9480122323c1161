import torch
import torch.nn as nn


class Model(nn.Module):
    """Two D2Q9 lattice-Boltzmann steps: roll streaming, bounce-back, Smagorinsky relaxation, body force."""

    def __init__(self, tau, smag, steps):
        super().__init__()
        self.steps = steps
        self.tau = nn.Parameter(torch.tensor(tau))
        self.smag = nn.Parameter(torch.tensor(smag))
        self.force = nn.Parameter(torch.tensor([1e-4, 0.0]))
        self.c = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
        self.register_buffer("e", torch.tensor(self.c, dtype=torch.float32))
        self.register_buffer("w", torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4))
        self.register_buffer("opp", torch.tensor([0, 3, 4, 1, 2, 7, 8, 5, 6]))

    def forward(self, f, solid):
        w = self.w.view(9, 1, 1)
        ex, ey = self.e[:, 0].view(9, 1, 1), self.e[:, 1].view(9, 1, 1)
        for _ in range(self.steps):
            f = torch.stack([torch.roll(f[i], (dy, dx), (0, 1)) for i, (dx, dy) in enumerate(self.c)])
            rho = f.sum(0)
            ux = (f * ex).sum(0) / rho + self.force[0]
            uy = (f * ey).sum(0) / rho + self.force[1]
            cu = 3 * (ex * ux + ey * uy)
            feq = w * rho * (1 + cu + 0.5 * cu * cu - 1.5 * (ux * ux + uy * uy))
            ne = f - feq
            qxx, qyy, qxy = (ne * ex * ex).sum(0), (ne * ey * ey).sum(0), (ne * ex * ey).sum(0)
            q = torch.sqrt(qxx * qxx + qyy * qyy + 2 * qxy * qxy + 1e-12)
            tau = 0.5 * (self.tau + torch.sqrt(self.tau ** 2 + 18 * self.smag ** 2 * q / rho))
            f = torch.where(solid, f[self.opp], f - ne / tau)
        vort = (torch.roll(uy, -1, 1) - torch.roll(uy, 1, 1)) - (torch.roll(ux, -1, 0) - torch.roll(ux, 1, 0))
        return f, vort.masked_fill(solid, 0.0)


def get_inputs():
    return [torch.rand(9, 769, 1021) * 0.05 + 0.1, torch.rand(769, 1021) < 0.05]


def get_init_inputs():
    return [0.6, 0.17, 2]
