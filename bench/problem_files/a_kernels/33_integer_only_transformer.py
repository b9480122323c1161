import torch
import torch.nn as nn


class Model(nn.Module):
    """Integer-only softmax, GELU, layer norm: fixed-point polynomials, shifts, Newton root, saturation."""

    def __init__(self, d):
        super().__init__()
        self.s = nn.Parameter(torch.rand(d) * 0.02 + 0.03)
        self.g = nn.Parameter(torch.randn(d))

    def iexp(self, q):
        ln2, b = 2839, 5541
        z, p = (-q) // ln2, -((-q) % ln2)
        poly = ((1469 * ((((p + b) * (p + b)) >> 12)) + (1 << 11)) >> 12) + 1409
        return poly >> z.clamp(max=30)

    def isqrt(self, n):
        x = torch.full_like(n, 1 << 16)
        for _ in range(18):
            x = torch.minimum(x, (x + n // x) >> 1)
        return x

    def forward(self, x):
        q = torch.round(x / self.s).clamp(-128, 127)
        ste = x + (q * self.s - x).detach()
        qi = q.to(torch.int64)
        sc, sh = torch.frexp(self.s.detach())
        mul = torch.round(sc * (1 << 15)).to(torch.int64)
        f = (qi * mul * 64) >> (9 - sh.to(torch.int64))
        mx = f.amax(-1, keepdim=True)
        e = self.iexp(f - mx)
        pr = (e * ((1 << 30) // e.sum(-1, keepdim=True))) >> 15
        a = torch.minimum(f.abs(), torch.tensor(7246, device=x.device))
        er = torch.sign(f) * (4096 - ((1183 * (((a - 7246) * (a - 7246)) >> 12)) >> 12))
        ge = (f * (4096 + er)) >> 13
        mu = torch.div(ge.sum(-1, keepdim=True), x.shape[-1], rounding_mode="floor")
        c = ge - mu
        var = (c * c).sum(-1, keepdim=True) // x.shape[-1]
        std = self.isqrt(var + 1)
        ln = torch.div(c << 10, std, rounding_mode="trunc").clamp(-4096, 4095)
        ok = (std * std <= var + 1) & ((std + 1) * (std + 1) > var + 1)
        i8 = ((ln + 16) >> 5).clamp(-128, 127).to(torch.int8)
        soft = torch.softmax(ste, -1)
        st1 = soft + (pr.to(x.dtype) / 32768 - soft).detach()
        y = st1 * self.g + i8 * self.s * ste.tanh()
        odd = (i8.to(torch.int32) & 1).sum(-1) - (pr % 2).sum(-1)
        top = (i8 == i8.amax(1, keepdim=True)).sum(1)
        return y, pr.to(torch.int32), ln.to(torch.int16), odd, (~ok).sum((1, 2)), top


def get_inputs():
    return [torch.randn(13, 101, 197) * 1.5]


def get_init_inputs():
    return [197]
