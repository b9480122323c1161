import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Trajectory head: NIG evidential regression for speed plus bivariate Gaussian mixture NLL for xy."""

    def __init__(self, in_dim, hidden, modes, horizon):
        super().__init__()
        self.modes, self.horizon = modes, horizon
        self.trunk = nn.Sequential(nn.Linear(in_dim, hidden), nn.SiLU(), nn.LayerNorm(hidden))
        self.traj = nn.Linear(hidden, modes * horizon * 5)
        self.mode_logits = nn.Linear(hidden, modes)
        self.evidence = nn.Linear(hidden, horizon * 4)
        self.reg = 0.05

    def nig_nll(self, raw, y):
        mu, v, alpha, beta = raw.unbind(-1)
        v = F.softplus(v) + 1e-2
        alpha = F.softplus(alpha) + 1.0 + 1e-2
        beta = F.softplus(beta) + 1e-2
        omega = 2.0 * beta * (1.0 + v)
        nll = (
            0.5 * torch.log(math.pi / v)
            - alpha * torch.log(omega)
            + (alpha + 0.5) * torch.log(v * (y - mu) ** 2 + omega)
            + torch.lgamma(alpha)
            - torch.lgamma(alpha + 0.5)
        )
        penalty = (y - mu).abs() * (2 * v + alpha)
        return nll.mean() + self.reg * penalty.mean()

    def forward(self, x, xy, speed, mask):
        h = self.trunk(x)
        p = self.traj(h).view(-1, self.modes, self.horizon, 5)
        mean = p[..., :2].cumsum(dim=2)
        log_sx, log_sy = p[..., 2].clamp(-3, 3), p[..., 3].clamp(-3, 3)
        rho = 0.95 * torch.tanh(p[..., 4])
        d = (xy.unsqueeze(1) - mean)
        dx = d[..., 0] * torch.exp(-log_sx)
        dy = d[..., 1] * torch.exp(-log_sy)
        one_m = 1 - rho.pow(2)
        maha = (dx * dx - 2 * rho * dx * dy + dy * dy) / one_m
        logp = -0.5 * maha - log_sx - log_sy - 0.5 * torch.log(one_m) - math.log(2 * math.pi)
        logp = (logp * mask[:, None]).sum(-1) / mask.sum(-1, keepdim=True).clamp(min=1)
        mix = F.log_softmax(self.mode_logits(h), dim=-1)
        nll = -torch.logsumexp(mix + logp, dim=-1).mean()
        ev = self.nig_nll(self.evidence(h).view(-1, self.horizon, 4), speed)
        return nll + ev


def get_inputs():
    return [
        torch.randn(150, 96),
        torch.randn(150, 12, 2).cumsum(1),
        torch.rand(150, 12) * 3,
        (torch.rand(150, 12) > 0.15).float(),
    ]


def get_init_inputs():
    return [96, 160, 6, 12]
