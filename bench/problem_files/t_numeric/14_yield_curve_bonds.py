import torch
import torch.nn as nn


class Model(nn.Module):
    """Discounts a bond portfolio off a zero curve (linear in r*t), then backs out
    yield to maturity by Newton, with duration, convexity and key-rate sensitivities."""

    def __init__(self, knots, newton_steps):
        super().__init__()
        self.register_buffer("knots", torch.tensor(knots))
        self.newton_steps = newton_steps

    def forward(self, zero, times, cash):
        # zero (K,), times (N, C) years, cash (N, C) (0 where padded)
        kn = self.knots
        K = kn.numel()
        hi = torch.searchsorted(kn, times).clamp(1, K - 1)
        lo = hi - 1
        t0, t1 = kn[lo], kn[hi]
        w = ((times - t0) / (t1 - t0)).clamp(0.0, 1.0)
        rt = kn * zero
        logdf = -((1 - w) * rt[lo] + w * rt[hi])
        pv = cash * torch.exp(logdf)
        price = pv.sum(dim=1)
        # key-rate dv01: scatter the pv-weighted node exposure
        kr = torch.zeros(times.shape[0], K, device=times.device, dtype=times.dtype)
        kr.scatter_add_(1, lo, -pv * (1 - w) * t0)
        kr.scatter_add_(1, hi, -pv * w * t1)
        y = torch.full_like(price, 0.03)
        for _ in range(self.newton_steps):
            e = cash * torch.exp(-y[:, None] * times)
            f = e.sum(1) - price
            df = -(e * times).sum(1)
            y = y - f / df
        e = cash * torch.exp(-y[:, None] * times)
        p = e.sum(1)
        dur = (e * times).sum(1) / p
        conv = (e * times * times).sum(1) / p
        return price, y, dur, conv, kr * 1e-4


def get_inputs():
    n, c = 163, 20
    zero = 0.02 + 0.02 * torch.rand(11)
    first = 0.02 + 0.45 * torch.rand(n, 1)
    times = first + 0.5 * torch.arange(c).float()
    ncf = torch.randint(2, c + 1, (n, 1))
    j = torch.arange(c)
    coupon = 0.5 + 3.0 * torch.rand(n, 1)
    cash = torch.where(j < ncf, coupon.expand(n, c), torch.zeros(n, c))
    cash = cash + 100.0 * (j == ncf - 1).float()
    return [zero, times, cash]


def get_init_inputs():
    return [[0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 9.0, 12.0], 5]
