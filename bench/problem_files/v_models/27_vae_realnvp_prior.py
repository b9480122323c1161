import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import orthogonal, weight_norm


class Coupling(nn.Module):
    def __init__(self, dim, hidden, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(
            weight_norm(nn.Linear(dim, hidden)), nn.Tanhshrink(), weight_norm(nn.Linear(hidden, hidden)), nn.Softsign(),
            weight_norm(nn.Linear(hidden, 2 * dim)),
        )
        self.scale = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, x):
        keep = x * self.mask
        s, t = self.net(keep).chunk(2, dim=-1)
        s = torch.tanh(s) * self.scale * (1 - self.mask)
        return keep + (1 - self.mask) * (x * s.exp() + t), s.sum(-1)

    def inverse(self, y):
        keep = y * self.mask
        s, t = self.net(keep).chunk(2, dim=-1)
        s = torch.tanh(s) * self.scale * (1 - self.mask)
        return keep + (1 - self.mask) * (y - t) * (-s).exp()


class RunningNorm(nn.Module):
    """Invertible normalisation by running moments, which a forward brings up to date after their use."""

    def __init__(self, dim, momentum=0.05):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.log_gamma, self.beta = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        mean, var = self.mean.clone(), self.var.clone()
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), self.momentum)
            self.var.lerp_(x.var(0, unbiased=False), self.momentum)
        y = (x - mean) * torch.rsqrt(var + 1e-5) * self.log_gamma.exp() + self.beta
        return y, (self.log_gamma - 0.5 * torch.log(var + 1e-5)).sum().expand(x.size(0))


class Model(nn.Module):
    """Convolutional VAE with given noise, a RealNVP prior with orthogonal mixing, free bits, a discretised-logistic
    likelihood, importance-weighted over the samples; some prior noise is decoded through the flow's inverse."""

    def __init__(self, cin, width, latent, hidden, flows, free_bits):
        super().__init__()
        self.latent, self.free_bits = latent, free_bits
        self.enc = nn.Sequential(
            nn.Conv2d(cin, width, 4, 2, 1), nn.ELU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(3, 2 * width), nn.ELU(),
            nn.Conv2d(2 * width, 2 * width, 3, 2, 1), nn.ELU(), nn.Flatten(), nn.Linear(2 * width * 16, 2 * latent),
        )
        self.fc = nn.Linear(latent, 2 * width * 16)
        self.dec = nn.Sequential(
            nn.Unflatten(1, (2 * width, 4, 4)), nn.ELU(),
            nn.ConvTranspose2d(2 * width, 2 * width, 3, 2, 1), nn.GroupNorm(3, 2 * width), nn.ELU(),
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, output_padding=1), nn.ELU(),
            nn.ConvTranspose2d(width, 2 * cin, 4, 2, 1),
        )
        mask = (torch.arange(latent) % 2).float()
        self.couplings = nn.ModuleList([Coupling(latent, hidden, mask if i % 2 else 1 - mask) for i in range(flows)])
        self.mixing = nn.ModuleList([orthogonal(nn.Linear(latent, latent, bias=False), orthogonal_map="cayley") for _ in range(flows)])
        self.norms = nn.ModuleList([RunningNorm(latent) for _ in range(flows)])

    def prior_log_prob(self, z):
        logdet = z.new_zeros(z.size(0))
        for c, m, n in zip(self.couplings, self.mixing, self.norms):
            z, a = c(z)
            z = m(z)
            z, b = n(z)
            logdet = logdet + a + b
        return -0.5 * (z.pow(2) + math.log(2 * math.pi)).sum(-1) + logdet

    def sample(self, e):
        for c, m, n in zip(reversed(self.couplings), reversed(self.mixing), reversed(self.norms)):
            e = (e - n.beta) * (-n.log_gamma).exp()
            e = c.inverse(e @ m.weight)
        return e

    def logistic(self, x, params):
        mu, log_s = params.chunk(2, 1)
        log_s = log_s.clamp(min=-4)
        inv = torch.exp(-log_s)
        hi, lo = (x + 1 / 255 - mu) * inv, (x - 1 / 255 - mu) * inv
        cdf = torch.sigmoid(hi) - torch.sigmoid(lo)
        mid = (x - mu) * inv
        logpdf = mid - log_s - 2 * F.softplus(mid) - math.log(127.5)
        inner = torch.where(cdf > 1e-5, torch.log(cdf.clamp(min=1e-10)), logpdf)
        edge = torch.where(x < -0.999, hi - F.softplus(hi), torch.where(x > 0.999, -F.softplus(lo), inner))
        return edge.flatten(1).sum(1)

    def forward(self, x, eps, prior_eps):
        mu, log_std = self.enc(x).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        k, b = eps.shape[:2]
        z = mu + log_std.exp() * eps
        log_q = (-0.5 * eps.pow(2) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        log_p = self.prior_log_prob(z.view(k * b, -1)).view(k, b)
        params = self.dec(self.fc(z.flatten(0, 1)))
        log_x = self.logistic(x.repeat(k, 1, 1, 1), params).view(k, b)
        kl = torch.clamp(log_q - log_p, min=self.free_bits)
        bound = torch.logsumexp(log_x - kl, 0) - math.log(k)
        drawn = torch.tanh(self.dec(self.fc(self.sample(prior_eps))).chunk(2, 1)[0])
        return -bound.mean() / x[0].numel(), kl.mean(0), drawn


def get_inputs():
    x = (torch.rand(4, 3, 28, 28) * 2.4 - 1.2).clamp(-1, 1)
    return [x, torch.randn(3, 4, 22), torch.randn(2, 22)]


def get_init_inputs():
    return [3, 15, 22, 38, 4, 2.0]
