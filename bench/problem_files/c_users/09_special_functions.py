import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Log-densities of many distributions with special functions, tensor-bound clamps and log-space arithmetic."""

    def __init__(self, k):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(k))
        self.loc = nn.Parameter(torch.randn(k) * 0.3)

    def forward(self, x, p, counts):
        a = nn.functional.softplus(self.raw) + 0.5
        b = a.flip(0) + 0.25
        beta = torch.xlogy(a - 1, p) + torch.special.xlog1py(b - 1, -p) - (torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b))
        gamma = a * b.log() + (a - 1) * p.log() - b * p - torch.lgamma(a)
        pois = torch.xlogy(counts, a) - a - torch.lgamma(counts.to(x.dtype) + 1)
        z = (x - self.loc) / a
        normal_cdf = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
        logcdf = torch.special.log_ndtr(z)
        mills = torch.exp(-0.5 * z * z) / (torch.special.erfcx(z.clamp(min=-1) / math.sqrt(2)) + 0.1)
        student = torch.lgamma((a + 1) / 2) - torch.lgamma(a / 2) - (a + 1) / 2 * torch.log1p(z * z / a)
        mix = torch.logaddexp(student, -0.5 * z * z)
        mix2 = torch.logaddexp2(beta, gamma.clamp(min=-30))
        dig = torch.digamma(a) - torch.digamma(a + b)
        tri = torch.polygamma(1, b)
        ent = torch.special.entr(p) + torch.special.entr(1 - p)
        logit = torch.logit(p, eps=1e-3)
        probit = torch.special.ndtri(p.clamp(0.02, 0.98))
        bes = torch.special.i0e(x) + torch.special.i1e(x) * torch.sinc(x)
        vm = x.cos() * a - torch.log(torch.special.i0(a))
        inv = torch.erfinv((2 * p - 1) * 0.95)
        hyp = torch.asinh(x) + torch.acosh(1.5 + x.square()) + torch.atanh(0.9 * p) - torch.expm1(-p) + torch.log1p(p)
        lo = torch.minimum(self.loc, self.raw) - 0.1
        hi = torch.maximum(self.loc, self.raw) + 0.1
        boxed = torch.clamp(x, min=lo, max=hi)
        trig = torch.atan2(x, 1 + p) + torch.hypot(x, p) + torch.deg2rad(x * 90).sin()
        soft = x.cumsum(1).logcumsumexp(1)
        fr = torch.copysign(p, x) + torch.heaviside(x.detach(), x.new_tensor(0.5)) + torch.ldexp(p, counts % 4)
        return [beta, gamma, pois, normal_cdf, logcdf, mills, mix, mix2], (dig, tri), ent, logit + probit, bes, vm, inv, hyp, boxed, trig, soft, fr


def get_inputs():
    return [torch.randn(73, 31), torch.rand(73, 31) * 0.9 + 0.05, torch.randint(0, 9, (73, 31))]


def get_init_inputs():
    return [31]
