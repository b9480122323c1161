import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Option pricing and portfolio code: Black-Scholes Greeks, binomial trees, implied vol by Newton, drawdowns, rolling statistics."""

    def __init__(self, assets, tree):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(assets))
        self.rate = nn.Parameter(torch.tensor(0.02))
        self.tree = tree

    def bs(self, s, k, t, vol):
        sd = vol * t.sqrt()
        d1 = (torch.log(s / k) + (self.rate + 0.5 * vol * vol) * t) / sd
        cdf = lambda u: 0.5 * torch.erfc(-u / math.sqrt(2))
        price = s * cdf(d1) - k * torch.exp(-self.rate * t) * cdf(d1 - sd)
        vega = s * t.sqrt() * torch.exp(-0.5 * d1 ** 2) / math.sqrt(2 * math.pi)
        return price, vega, cdf(d1)

    def binomial(self, s, k, t, vol):
        n = self.tree
        dt = t / n
        up = torch.exp(vol * dt.sqrt())
        p = (torch.exp(self.rate * dt) - 1 / up) / (up - 1 / up)
        disc = torch.exp(-self.rate * dt)
        j = torch.arange(n + 1, device=s.device, dtype=s.dtype)
        spot = s[:, None] * up[:, None] ** (2 * j - n)
        v = torch.relu(k[:, None] - spot)
        for i in range(n - 1, -1, -1):
            v = disc[:, None] * (p[:, None] * v[:, 1:] + (1 - p[:, None]) * v[:, :-1])
            spot = spot[:, 1:] / up[:, None]
            v = torch.maximum(v, k[:, None] - spot)
        return v[:, 0]

    def forward(self, shocks, s, k, t, vol):
        price, vega, delta = self.bs(s, k, t, vol)
        iv = torch.full_like(vol, 0.35)
        for _ in range(5):
            pr, vg, _ = self.bs(s, k, t, iv)
            iv = (iv - (pr - price.detach()) / (vg + 1e-2)).clamp(0.05, 1.5)
        amer = self.binomial(s, k, t, vol)

        w = torch.softmax(self.weights, 0)
        ret = 0.01 * shocks
        wealth = (ret @ w).cumsum(0).exp()
        peak = wealth.cummax(0).values
        dd = 1 - wealth / peak
        roll = ret.unfold(0, 21, 1)
        rstd = roll.std(-1)
        ma = torch.nn.functional.avg_pool1d(ret.t()[:, None], 5, stride=1, count_include_pad=False).squeeze(1)
        decay = 0.94 ** torch.arange(ret.shape[0] - 1, -1, -1, device=ret.device, dtype=ret.dtype)
        ew = (ret * decay[:, None]).T @ ret / decay.sum()
        risk = w * (ew @ w) / (w @ ew @ w)
        down = ret.clamp(max=0).square().mean(0).sqrt()
        sharpe = ret.mean(0) / (ret.std(0) + down)
        var95 = torch.quantile(ret @ w, 0.05)
        es = -torch.relu(var95 - ret @ w).mean() / 0.05 + var95
        cross = torch.diff(torch.sign(shocks), dim=0).ne(0).sum(0)
        vwap = torch.cumsum(wealth * peak, 0) / torch.cumsum(peak, 0)
        return {"price": price, "greeks": (vega, delta), "iv": iv, "amer": amer, "dd": dd, "rstd": rstd, "ma": ma, "risk": risk,
                "sharpe": sharpe, "es": es, "cross": cross, "vwap": vwap}


def get_inputs():
    return [torch.randn(251, 13), torch.rand(197) * 10 + 95, torch.rand(197) * 10 + 95, torch.rand(197) + 0.5, torch.rand(197) * 0.3 + 0.2]


def get_init_inputs():
    return [13, 23]
