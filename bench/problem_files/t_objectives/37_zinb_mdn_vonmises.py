import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def log_zinb_positive(x, mu, theta, pi, eps=1e-6):
    softplus_pi = F.softplus(-pi)
    log_theta_eps = torch.log(theta + eps)
    log_theta_mu_eps = torch.log(theta + mu + eps)
    pi_theta_log = -pi + theta * (log_theta_eps - log_theta_mu_eps)
    case_zero = F.softplus(pi_theta_log) - softplus_pi
    case_non_zero = (
        -softplus_pi + pi_theta_log
        + x * (torch.log(mu + eps) - log_theta_mu_eps)
        + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1)
    )
    return torch.where(x < eps, case_zero, case_non_zero)


class Model(nn.Module):
    """scVI-like decoder likelihood with auxiliary Student-t mixture, von Mises and gamma heads."""

    def __init__(self, zdim, hidden, genes, n_mix):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(zdim, hidden), nn.LayerNorm(hidden), nn.ReLU())
        self.px_scale = nn.Linear(hidden, genes)
        self.px_dropout = nn.Linear(hidden, genes)
        self.px_r = nn.Parameter(torch.randn(genes) * 0.3)
        self.mix = nn.Linear(hidden, 4 * n_mix)
        self.angle = nn.Linear(hidden, 3)
        self.gamma = nn.Linear(hidden, 2)

    def student_mixture(self, h, y):
        logit, mu, ls, ldf = self.mix(h).chunk(4, -1)
        df = 2.0 + F.softplus(ldf)
        scale = F.softplus(ls) + 0.05
        z = (y[:, None] - mu) / scale
        lp = (
            torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2)
            - 0.5 * torch.log(df * math.pi) - torch.log(scale)
            - (df + 1) / 2 * torch.log1p(z * z / df)
        )
        return -torch.logsumexp(F.log_softmax(logit, -1) + lp, -1).mean()

    def von_mises(self, h, ang):
        a = self.angle(h)
        loc = torch.atan2(a[:, 0], a[:, 1] + 1e-6)
        kappa = F.softplus(a[:, 2]) + 0.1
        log_i0 = torch.log(torch.special.i0e(kappa)) + kappa
        return (log_i0 + math.log(2 * math.pi) - kappa * torch.cos(ang - loc)).mean()

    def gamma_nll(self, h, t):
        log_mean, raw_k = self.gamma(h).unbind(-1)
        k = F.softplus(raw_k) + 0.2
        rate = k * torch.exp(-log_mean)
        return (torch.lgamma(k) - k * torch.log(rate) - (k - 1) * torch.log(t) + rate * t).mean()

    def forward(self, z, library, counts, y, ang, t):
        h = self.body(z)
        rate = library * F.softmax(self.px_scale(h), dim=-1)
        theta = torch.exp(self.px_r)
        zinb = -log_zinb_positive(counts, rate, theta, self.px_dropout(h)).sum(-1).mean()
        poisson = F.poisson_nll_loss(torch.log(rate + 1e-6), counts, full=False)
        return zinb / counts.shape[1] + 0.1 * poisson + self.student_mixture(h, y) + self.von_mises(h, ang) + self.gamma_nll(h, t)


def get_inputs():
    B, G = 44, 390
    counts = torch.floor(torch.exp(torch.randn(B, G))) * (torch.rand(B, G) > 0.4)
    return [
        torch.randn(B, 24), counts.sum(1, keepdim=True) + 1.0, counts, torch.randn(B),
        (torch.rand(B) * 2 - 1) * math.pi, 0.1 + torch.rand(B) * 3,
    ]


def get_init_inputs():
    return [24, 80, 390, 5]
