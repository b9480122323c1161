import torch
import torch.nn as nn


class Model(nn.Module):
    """Ranked long-short weights with capped redistribution, wealth cumprod, drawdown by cummax, CVaR."""

    def __init__(self, f, k):
        super().__init__()
        self.k = k
        self.beta = nn.Parameter(torch.randn(f))
        self.temp = nn.Parameter(torch.tensor(0.8))
        self.cap = 0.024

    def forward(self, r, f):
        t, n = r.shape
        s = (f * self.beta).sum(-1)
        s = s - s.mean(1, keepdim=True)
        z = s / s.std(1, keepdim=True)
        lng = z >= z.topk(self.k, 1).values[:, -1:]
        sht = z <= z.topk(self.k, 1, largest=False).values[:, -1:]
        raw = torch.exp(self.temp * z.abs().clamp(max=2.5)) * (lng | sht)
        side = lng.to(r.dtype) - sht.to(r.dtype)
        w = raw / raw.sum(1, keepdim=True)
        for _ in range(3):
            free = (w < self.cap) & (raw > 0)
            ex = (w - self.cap).clamp(min=0).sum(1, keepdim=True)
            w = w.clamp(max=self.cap) + ex * free / free.sum(1, keepdim=True).clamp(min=1)
        w = w * side
        lag = torch.cat([torch.zeros_like(w[:1]), w[:-1]])
        port = (lag * r).sum(1) - 0.0001 * (w - lag).abs().sum(1)
        wl = torch.cumprod(1 + port, 0)
        peak = torch.cummax(wl, 0).values
        dd = 1 - wl / peak
        i = torch.arange(t, device=r.device)
        under = i - torch.where(wl == peak, i, 0).cummax(0).values
        tail = port.topk(t // 20, largest=False).values
        cvar, var = -tail.mean(), -port.kthvalue(t // 20).values
        down = torch.sqrt(port.clamp(max=0).square().mean() + 1e-8)
        up = port > port.median()
        flips = (up[1:] != up[:-1]).sum()
        vol = torch.stack([port[j: t - 62 + j] for j in range(63)]).std(0)
        omega = port.clamp(min=0).sum() / (-port).clamp(min=0).sum()
        hit = ((side > 0) & (r > r.median(1, keepdim=True).values)).sum(1) / self.k
        risk = torch.stack([dd.amax(), cvar / var, port.mean() / down, omega, (vol / vol.amin()).mean()])
        return wl, dd, risk, hit.to(r.dtype), under, flips, (w.abs() >= self.cap).sum(1)


def get_inputs():
    return [torch.randn(1259, 503) * 0.02, torch.randn(1259, 503, 3)]


def get_init_inputs():
    return [3, 25]
