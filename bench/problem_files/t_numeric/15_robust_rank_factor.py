import torch
import torch.nn as nn


class Model(nn.Module):
    """Cross-sectional factor research: robust z-scores (median/MAD, winsorised),
    sector neutralisation, Pearson and Spearman IC, mean return per quantile bucket."""

    def __init__(self, clip, n_sectors, n_buckets):
        super().__init__()
        self.clip = clip
        self.n_sectors = n_sectors
        self.n_buckets = n_buckets

    @staticmethod
    def ranks(x):
        return x.argsort(dim=1).argsort(dim=1)

    @staticmethod
    def corr(a, b):
        a = a - a.mean(1, keepdim=True)
        b = b - b.mean(1, keepdim=True)
        return (a * b).sum(1) / torch.sqrt((a * a).sum(1) * (b * b).sum(1) + 1e-12)

    def forward(self, factor, ret, sector):
        # factor, ret: (days, stocks); sector: (stocks,) long
        D, N = factor.shape
        med = factor.median(dim=1, keepdim=True).values
        mad = (factor - med).abs().median(dim=1, keepdim=True).values
        z = (0.6745 * (factor - med) / (mad + 1e-6)).clamp(-self.clip, self.clip)
        sums = torch.zeros(D, self.n_sectors, device=factor.device).index_add_(1, sector, z)
        cnt = torch.bincount(sector, minlength=self.n_sectors).clamp(min=1).to(z.dtype)
        z = z - (sums / cnt)[:, sector]
        ic = self.corr(z, ret)
        rf, rr = self.ranks(factor), self.ranks(ret)
        rank_ic = self.corr(rf.to(z.dtype), rr.to(z.dtype))
        bucket = rf * self.n_buckets // N
        bsum = torch.zeros(D, self.n_buckets, device=z.device).scatter_add_(1, bucket, ret)
        bcnt = torch.zeros_like(bsum).scatter_add_(1, bucket, torch.ones_like(ret))
        bmean = bsum / bcnt
        spread = bmean[:, -1] - bmean[:, 0]
        summary = torch.stack((ic.mean(), ic.mean() / ic.std(), rank_ic.mean(), spread.mean()))
        return z, torch.stack((ic, rank_ic), dim=1), bmean, summary


def get_inputs():
    D, N = 22, 907
    f = torch.randn(D, N) ** 3 + torch.randn(D, 1)
    r = 0.02 * torch.randn(D, N) + 0.01 * torch.tanh(f)
    return [f, r, torch.randint(0, 11, (N,))]


def get_init_inputs():
    return [3.0, 11, 5]
