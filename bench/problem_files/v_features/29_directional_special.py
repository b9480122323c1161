import math

import torch
import torch.nn as nn
from torch import special


class Model(nn.Module):
    """Likelihoods made of special functions: von Mises and wrapped normal directions, Rice
    amplitudes, Dirichlet compositions, Beta rates, gamma-Poisson counts; Newton steps on
    digamma/trigamma, goodness of fit by probability transforms, and float anatomy."""

    def __init__(self, groups, parts):
        super().__init__()
        self.log_kappa = nn.Parameter(torch.linspace(-1.0, 2.0, groups))
        self.mean = nn.Parameter(torch.linspace(-3.0, 3.0, groups))
        self.alpha = nn.Parameter(torch.linspace(-0.5, 1.0, parts))
        self.shape = nn.Parameter(torch.tensor([0.7, -0.2]))

    def von_mises(self, angle):
        kappa = self.log_kappa.exp()
        centred = angle.unsqueeze(-1) - self.mean
        log_norm = math.log(2 * math.pi) + special.i0e(kappa).log() + kappa
        logp = kappa * centred.cos() - log_norm
        ratio = special.i1e(kappa) / special.i0e(kappa)  # mean resultant length
        wrapped = torch.remainder(centred + math.pi, 2 * math.pi) - math.pi
        k = torch.arange(-2, 3) * (2 * math.pi)
        normal = -0.5 * ((wrapped.unsqueeze(-1) + k) * kappa.sqrt().unsqueeze(-1)) ** 2
        return logp, ratio, normal.logsumexp(-1) + 0.5 * (kappa / (2 * math.pi)).log()

    def rice(self, amp, nu):
        z = amp * nu
        bessel = torch.log(special.i0e(z)) + z.abs()
        return torch.log(amp) - 0.5 * (amp * amp + nu * nu) + bessel

    def dirichlet_newton(self, logs):
        """Minka's fixed point with the inverse of digamma by Newton."""
        a = nn.functional.softplus(self.alpha)
        for _ in range(3):
            y = special.digamma(a.sum()) + logs
            x = torch.where(y >= -2.22, y.exp() + 0.5, -1.0 / (y + 0.5772157))
            for _ in range(3):
                x = (x - (special.digamma(x) - y) / special.polygamma(1, x)).clamp_min(1e-3)
            a = x
        return a

    def forward(self, angle, amp, composition, rate, count):
        logp, ratio, wrapped = self.von_mises(angle)
        rice = self.rice(amp.unsqueeze(-1), ratio * 3)
        logs = composition.log().mean(0)
        a = self.dirichlet_newton(logs)
        dirichlet = special.gammaln(a.sum()) - special.gammaln(a).sum() + special.xlogy(a - 1, composition).sum(-1)
        p, q = nn.functional.softplus(self.shape).unbind(0)
        beta = special.xlogy(p - 1, rate) + special.xlog1py(q - 1, -rate)
        beta = beta - (torch.lgamma(p) + torch.lgamma(q) - torch.lgamma(p + q))
        c = count.to(amp.dtype)
        poisson = torch.lgamma(c + p) - torch.lgamma(c + 1) - torch.lgamma(p) + special.xlogy(c, q) - (c + p) * torch.log1p(q)
        entropy = special.entr(composition).sum(-1) - special.entr(special.expit(special.logit(rate, eps=1e-4)))

        u = 0.5 * (1 + torch.erf((amp - 1.2) / 0.9))
        back = 0.9 * special.erfinv((2 * u - 1).clamp(-0.9999, 0.9999))
        mills = special.erfcx(amp) * special.log_ndtr(-amp)
        ks = (u.sort().values - torch.arange(1, u.numel() + 1) / u.numel()).abs().amax()
        lobe = torch.sinc(angle) * special.bessel_j1(angle.detach()) + special.bessel_j0(angle.detach())
        heavy = special.modified_bessel_k0(amp.detach()) + special.zeta(1.0 + amp.detach(), 2.0)
        cdf = special.gammainc(p.detach(), amp.detach()) - special.gammaincc(q.detach(), amp.detach())

        mantissa, exponent = torch.frexp(amp)
        again = torch.ldexp(mantissa.detach(), exponent)
        signed = torch.copysign(amp.unsqueeze(-1), -logp.detach())
        below = torch.nextafter(amp.detach(), torch.zeros_like(amp)) < amp
        folded = torch.fmod(-angle, 0.75) + torch.hypot(angle, amp)
        both = torch.logaddexp2(logp, wrapped) + torch.logaddexp(logp, -wrapped)
        return (logp, ratio, rice), dirichlet, (beta, poisson), entropy, back, mills, ks, lobe, heavy, cdf, exponent, again, signed, below, folded, both


def get_inputs():
    n = 2503
    comp = torch.rand(n, 9) + 0.02
    return [6 * torch.rand(n) - 3, 0.05 + 3 * torch.rand(n), comp / comp.sum(1, keepdim=True),
            0.01 + 0.98 * torch.rand(n), torch.randint(0, 40, (n,), dtype=torch.int16)]


def get_init_inputs():
    return [13, 9]
