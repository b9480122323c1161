import torch
import torch.nn as nn


class Model(nn.Module):
    """Bootstrap by given resampling indices over columns with missing values: nan-aware
    means, medians and quantiles, the BCa interval, pinball losses of a linear quantile
    model, and empirical distribution functions (also of an empty cohort)."""

    def __init__(self, features, taus):
        super().__init__()
        self.register_buffer("taus", torch.tensor(taus))
        self.weight = nn.Parameter(0.1 * torch.randn(len(taus), features))
        self.bias = nn.Parameter(torch.zeros(len(taus)))

    def bca(self, stat, boots, jack):
        b = boots.shape[0]
        below = ((boots < stat).sum(0) + 0.5 * (boots == stat).sum(0)).to(boots.dtype)
        z0 = torch.special.ndtri((below / b).clamp(0.5 / b, 1 - 0.5 / b))
        dev = torch.nanmean(jack, 0, keepdim=True) - jack
        acc = torch.nansum(dev**3, 0) / (6 * torch.nansum(dev**2, 0).pow(1.5) + 1e-12)
        za = 1.41421356 * torch.erfinv(torch.tensor([-0.9, 0.9], dtype=boots.dtype))
        zz = z0 + za[:, None]
        level = torch.special.ndtr(z0 + zz / (1 - acc * zz))
        ordered = boots.sort(dim=0, stable=True).values
        at = (level * (b - 1)).clamp(0, b - 1)
        low = at.floor().long()
        hi = (low + 1).clamp(max=b - 1)
        return torch.lerp(ordered.gather(0, low), ordered.gather(0, hi), at - low)

    def forward(self, x, y, idx, cohort):
        n, f = x.shape
        ok = torch.isfinite(x)
        x = torch.where(ok, x, torch.full_like(x, float("nan")))
        sample = x[idx]  # boots, n, f
        boots = sample.nanmean(1)
        median = torch.nanmedian(sample[:16], dim=1).values
        quart = torch.nanquantile(sample[:24].double(), torch.tensor([0.25, 0.75], dtype=torch.float64), dim=1)
        stat = x.nanmean(0)
        count = ok.sum(0)
        filled = x.nan_to_num(0.0)
        jack = (filled.sum(0) - filled) / (count - ok.to(torch.int64))
        jack = jack.masked_fill(~ok, float("nan"))
        interval = self.bca(stat.detach(), boots.detach(), jack.detach())

        z = torch.where(ok, x, stat.detach())
        pred = torch.addmm(self.bias, z, self.weight.t())
        diff = y.unsqueeze(1) - pred
        pinball = torch.maximum(self.taus * diff, (self.taus - 1) * diff)
        crossing = torch.relu(-torch.diff(pred, dim=1)).sum(1)
        coverage = (diff < 0).to(torch.bfloat16).mean(0)

        none = z[:0]
        empty = (none.sum(0), none.new_zeros(0, 3) @ none.new_ones(3, f), torch.nansum(none, 0))
        rank = torch.searchsorted(cohort.contiguous(), y, right=True)
        ecdf = rank.to(x.dtype) / max(cohort.numel(), 1)
        nothing = torch.searchsorted(cohort[:0].contiguous(), y)
        ks = (ecdf - (rank.argsort(stable=True).argsort() + 1) / n).abs().amax()
        trimmed = z.kthvalue(n - 3, dim=0).values - z.kthvalue(4, dim=0).values
        return boots, median, quart, interval, pinball, crossing, coverage, empty, rank, nothing, ks, trimmed


def get_inputs():
    n, f, b = 203, 11, 97
    x = torch.randn(n, f)
    x[torch.rand(n, f) < 0.1] = float("nan")
    x[5, 2], x[7, 3] = float("inf"), float("-inf")
    y = torch.randn(n)
    wide = torch.randn(155, 2).sort(dim=0).values
    return [x, y, torch.randint(0, n, (b, n)), wide[:, 1]]


def get_init_inputs():
    return [11, [0.1, 0.5, 0.9]]
