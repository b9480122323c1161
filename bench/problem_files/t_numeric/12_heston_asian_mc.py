import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Monte-Carlo pricing of arithmetic Asian and lookback options under Heston
    (full truncation Euler); the normal draws come in from outside."""

    def __init__(self, s0, v0, kappa, theta, xi, rho, r, maturity, strikes):
        super().__init__()
        self.s0, self.v0, self.kappa, self.theta = s0, v0, kappa, theta
        self.xi, self.rho, self.r, self.T = xi, rho, r, maturity
        self.register_buffer("strikes", torch.tensor(strikes))

    def forward(self, z):
        # z: (2, steps, paths)
        steps, paths = z.shape[1:]
        dt = self.T / steps
        sq = math.sqrt(dt)
        z1 = z[0]
        z2 = self.rho * z[0] + math.sqrt(1 - self.rho ** 2) * z[1]
        logs = torch.full((paths,), math.log(self.s0), device=z.device)
        v = torch.full((paths,), self.v0, device=z.device)
        run_sum = torch.zeros_like(logs)
        run_max = torch.full_like(logs, self.s0)
        for t in range(steps):
            vp = v.clamp(min=0.0)
            vol = torch.sqrt(vp)
            logs = logs + (self.r - 0.5 * vp) * dt + vol * sq * z1[t]
            v = v + self.kappa * (self.theta - vp) * dt + self.xi * vol * sq * z2[t]
            s = torch.exp(logs)
            run_sum += s
            run_max = torch.maximum(run_max, s)
        disc = math.exp(-self.r * self.T)
        avg = run_sum / steps
        asian = disc * torch.relu(avg[None, :] - self.strikes[:, None])
        look = disc * torch.relu(run_max[None, :] - self.strikes[:, None])
        pay = torch.stack((asian, look))
        price = pay.mean(-1)
        stderr = pay.std(-1) / math.sqrt(paths)
        return price, stderr


def get_inputs():
    return [torch.randn(2, 24, 8191)]


def get_init_inputs():
    return [100.0, 0.06, 3.0, 0.06, 0.3, -0.6, 0.02, 1.0, [85.0, 95.0, 100.0, 105.0, 120.0]]
