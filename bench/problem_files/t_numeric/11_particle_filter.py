import torch
import torch.nn as nn


class Model(nn.Module):
    """Bootstrap particle filter for a scalar stochastic-volatility state with
    systematic resampling (particles are ordered first, as in smooth particle filters)."""

    def __init__(self, phi, sigma, beta):
        super().__init__()
        self.phi, self.sigma, self.beta = phi, sigma, beta

    def forward(self, x, noise, obs, u):
        # x (B, N) particles, noise (T, B, N), obs (T, B), u (T, B, 1) in [0, 1)
        T, B, N = noise.shape
        grid = torch.arange(N, device=x.device, dtype=x.dtype)
        loglik = x.new_zeros(B)
        means, stds, ess = [], [], []
        for t in range(T):
            x = self.phi * x + self.sigma * noise[t]
            x, _ = torch.sort(x, dim=1)
            var = self.beta ** 2 * torch.exp(x)
            logw = -0.5 * (obs[t][:, None] ** 2 / var + torch.log(var))
            lse = torch.logsumexp(logw, dim=1, keepdim=True)
            loglik = loglik + lse.squeeze(1) - torch.log(torch.tensor(float(N), device=x.device))
            w = torch.exp(logw - lse)
            mean = (w * x).sum(1)
            means.append(mean)
            stds.append(torch.sqrt((w * (x - mean[:, None]) ** 2).sum(1)))
            ess.append(1.0 / (w * w).sum(1))
            cdf = torch.cumsum(w, dim=1)
            cdf = cdf / cdf[:, -1:]
            points = (grid + u[t]) / N
            idx = torch.searchsorted(cdf, points.contiguous()).clamp(max=N - 1)
            x = torch.gather(x, 1, idx)
        return torch.stack(means), torch.stack(stds), torch.stack(ess) / N, loglik


def get_inputs():
    T, B, N = 3, 6, 1500
    return [torch.randn(B, N) * 0.5, torch.randn(T, B, N), 0.7 * torch.randn(T, B), torch.rand(T, B, 1)]


def get_init_inputs():
    return [0.95, 0.3, 0.65]
