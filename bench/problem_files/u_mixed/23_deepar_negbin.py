import torch
import torch.nn as nn
import torch.nn.functional as F


def nb_log_prob(y, mu, alpha):
    """Negative binomial, mean mu and shape alpha (variance mu + mu^2 alpha)."""
    alphainv = 1.0 / alpha
    amu = alpha * mu
    ll = y * torch.log(amu / (1.0 + amu) + 1e-10)
    ll = ll - alphainv * torch.log1p(amu)
    ll = ll + torch.lgamma(y + alphainv) - torch.lgamma(y + 1.0) - torch.lgamma(alphainv)
    return ll


class Model(nn.Module):
    """DeepAR: two stacked GRU cells, scale handling, lagged inputs, teacher forcing then mean rollout."""

    def __init__(self, n_series, emb, n_cov, hidden, horizon, lags):
        super().__init__()
        self.hidden, self.horizon, self.lags = hidden, horizon, lags
        self.emb = nn.Embedding(n_series, emb)
        self.cells = nn.ModuleList([
            nn.GRUCell(len(lags) + n_cov + emb + 1, hidden),
            nn.GRUCell(hidden, hidden),
        ])
        self.mu = nn.Linear(2 * hidden, 1)
        self.alpha = nn.Linear(2 * hidden, 1)

    def head(self, h, scale):
        h = torch.cat(h, dim=-1)
        mu = F.softplus(self.mu(h)).squeeze(-1) * scale
        alpha = (F.softplus(self.alpha(h)).squeeze(-1) + 1e-4) / scale.sqrt()
        return mu, alpha

    def forward(self, series_id, target, cov, observed):
        B, T = target.shape
        start = max(self.lags)
        denom = observed.sum(1).clamp(min=1.0)
        scale = 1.0 + (target * observed).sum(1) / denom
        static = torch.cat([self.emb(series_id), scale.log().unsqueeze(-1)], dim=-1)
        h = [torch.zeros(B, self.hidden, device=target.device, dtype=target.dtype) for _ in self.cells]
        mus, alphas = [], []
        hist = torch.zeros(B, T + self.horizon, device=target.device)
        hist[:, :T] = target / scale[:, None]
        lag_idx = torch.tensor(self.lags, device=target.device)
        for t in range(start, T + self.horizon):
            x = torch.cat([hist.index_select(1, t - lag_idx), cov[:, t], static], dim=-1)
            for i, cell in enumerate(self.cells):
                h[i] = cell(x, h[i])
                x = h[i]
            mu, alpha = self.head(h, scale)
            mus.append(mu)
            alphas.append(alpha)
            if t >= T:
                hist = hist.clone()
                hist[:, t] = mu / scale
        mus, alphas = torch.stack(mus, 1), torch.stack(alphas, 1)
        n = T - start
        ll = nb_log_prob(target[:, start:], mus[:, :n], alphas[:, :n])
        w = observed[:, start:]
        loss = -torch.where(w > 0, ll, torch.zeros_like(ll)).sum() / w.sum().clamp_min(1.0)
        forecast = mus[:, n:]
        std = torch.sqrt(forecast + forecast.pow(2) * alphas[:, n:])
        nd = ((mus[:, :n] - target[:, start:]).abs() * w).sum() / (target[:, start:] * w).sum()
        return loss, forecast, std, nd


def get_inputs():
    B, T, H = 10, 18, 4
    y = torch.poisson(torch.rand(B, 1).mul(20).add(1).expand(B, T))
    return [torch.randint(0, 30, (B,)), y, torch.randn(B, T + H, 3), (torch.rand(B, T) > 0.1).float()]


def get_init_inputs():
    return [30, 6, 3, 24, 4, [1, 2, 7]]
