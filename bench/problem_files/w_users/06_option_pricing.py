import math

import torch
import torch.nn as nn


def norm_cdf(x):
    return 0.5 * torch.erfc(-x / math.sqrt(2.0))


class Model(nn.Module):
    """Black Scholes, CRR tree with early exercise, Longstaff Schwartz regression, Greeks-like
    finite differences, all in float64 like the quants asked for."""

    def __init__(self, tree_steps, poly):
        super().__init__()
        self.tree_steps = tree_steps
        self.poly = poly
        self.vol_raw = nn.Parameter(torch.tensor(-1.2, dtype=torch.float64))
        self.smile = nn.Parameter(torch.tensor([0.05, -0.1], dtype=torch.float64))
        self.rate = nn.Parameter(torch.tensor(0.03))

    def vol(self, S, K):
        m = torch.log(K / S)
        base = torch.nn.functional.softplus(self.vol_raw)
        return (base + self.smile[0] * m.square() + self.smile[1] * m).clamp(0.05, 1.5)

    def bs(self, S, K, T, r, sig, call):
        sq = sig * T.sqrt()
        d1 = (torch.log(S / K) + (r + sig ** 2 / 2) * T) / sq
        d2 = d1 - sq
        sign = torch.where(call, 1, -1)
        return sign * (S * norm_cdf(sign * d1) - K * torch.exp(-r * T) * norm_cdf(sign * d2))

    def crr(self, S, K, T, r, sig, call):
        n = self.tree_steps
        dt = T / n
        up = torch.exp(sig * dt.sqrt())
        p = (torch.exp(r * dt) - 1 / up) / (up - 1 / up)
        p = p.clamp(0.01, 0.99).unsqueeze(-1)
        disc = torch.exp(-r * dt).unsqueeze(-1)
        j = torch.arange(n + 1, device=S.device, dtype=torch.float64)
        prices = S.unsqueeze(-1) * up.unsqueeze(-1) ** (2 * j - n)
        sign = torch.where(call, 1.0, -1.0).double().unsqueeze(-1)
        val = torch.relu(sign * (prices - K.unsqueeze(-1)))
        for i in range(n - 1, -1, -1):
            val = disc * (p * val[..., 1:] + (1 - p) * val[..., :-1])
            spot = S.unsqueeze(-1) * up.unsqueeze(-1) ** (2 * j[: i + 1] - i)
            val = torch.maximum(val, sign * (spot - K.unsqueeze(-1)))
        return val.squeeze(-1)

    def lsm(self, z, S0, K, T, r, sig):
        steps, n = z.shape
        dt = T / steps
        inc = (r - 0.5 * sig * sig) * dt + sig * dt.sqrt() * z
        path = S0 * torch.exp(inc.cumsum(0))
        cash = torch.clamp(K - path[-1], min=0)
        for t in range(steps - 2, -1, -1):
            cash = cash * torch.exp(-r * dt)
            ex = (K - path[t]).clamp_min(0)
            itm = (ex > 0).double()
            X = torch.stack([(path[t] / K) ** i for i in range(self.poly + 1)], 1) * itm[:, None]
            A = X.T @ X + 1e-6 * torch.eye(self.poly + 1, dtype=X.dtype, device=X.device)
            beta = torch.linalg.solve(A, X.T @ (cash * itm))
            cont = (X @ beta).detach()
            cash = torch.where((ex > cont) & (itm > 0), ex, cash)
        return cash.mean() * torch.exp(-r * dt), cash.std(unbiased=False)

    def forward(self, S, K, T, call, z):
        S, K, T = S.double(), K.double(), T.to(torch.float64)
        r = self.rate.double()
        sig = self.vol(S, K)
        euro = self.bs(S, K, T, r, sig, call)
        amer = self.crr(S, K, T, r, sig, call)
        h = 1e-2
        delta = (self.bs(S + h, K, T, r, sig, call) - self.bs(S - h, K, T, r, sig, call)) / (2 * h)
        early = (amer - euro).clamp(min=0).float()
        price, sd = self.lsm(z.double(), S[0], K[0], T[0], r, sig[0])
        var95 = torch.quantile(euro - euro.mean(), 0.05)
        return euro.float(), amer, delta.float(), early, price, sd, var95


def get_inputs():
    n = 24
    return [90 + 20 * torch.rand(n), 80 + 40 * torch.rand(n), 0.2 + torch.rand(n),
            torch.rand(n) > 0.5, torch.randn(12, 400)]


def get_init_inputs():
    return [24, 3]
