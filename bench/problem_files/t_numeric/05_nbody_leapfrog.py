import torch
import torch.nn as nn


class Model(nn.Module):
    """Softened gravitational N-body, kick-drift-kick, plus energy diagnostics."""

    def __init__(self, G, eps, dt, steps):
        super().__init__()
        self.G = G
        self.eps2 = eps * eps
        self.dt = dt
        self.steps = steps

    def accel(self, pos, mass):
        d = pos.unsqueeze(0) - pos.unsqueeze(1)          # d[i, j] = r_j - r_i
        inv = torch.rsqrt((d * d).sum(-1) + self.eps2)
        return self.G * ((mass * inv ** 3).unsqueeze(-1) * d).sum(dim=1)

    def forward(self, pos, vel, mass):
        acc = self.accel(pos, mass)
        for _ in range(self.steps):
            vel = vel + 0.5 * self.dt * acc
            pos = pos + self.dt * vel
            acc = self.accel(pos, mass)
            vel = vel + 0.5 * self.dt * acc
        kinetic = 0.5 * (mass * vel.square().sum(-1)).sum()
        d2 = (pos[:, None] - pos[None]).square().sum(-1) + self.eps2
        pair = torch.outer(mass, mass) * d2.rsqrt()
        potential = -self.G * torch.triu(pair, diagonal=1).sum()
        ang = (mass[:, None] * torch.cross(pos, vel, dim=-1)).sum(0)
        return pos, vel, torch.stack((kinetic, potential)), ang


def get_inputs():
    n = 257
    return [torch.randn(n, 3), 0.1 * torch.randn(n, 3), (0.5 + torch.rand(n)) / n]


def get_init_inputs():
    return [1.0, 0.1, 0.01, 3]
