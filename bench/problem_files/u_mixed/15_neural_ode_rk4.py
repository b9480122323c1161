import torch
import torch.nn as nn
import torch.nn.functional as F


class ConcatSquash(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.layer = nn.Linear(i, o)
        self.hyper_bias = nn.Linear(1, o, bias=False)
        self.hyper_gate = nn.Linear(1, o)

    def forward(self, t, x):
        t = t.view(1, 1)
        return self.layer(x) * torch.sigmoid(self.hyper_gate(t)) + self.hyper_bias(t)


class ODEFunc(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.l1, self.l2, self.l3 = ConcatSquash(dim, hidden), ConcatSquash(hidden, hidden), ConcatSquash(hidden, dim)
        self.nfe = 0

    def forward(self, t, y):
        h = torch.tanh(self.l1(t, y))
        h = F.softplus(self.l2(t, h))
        return self.l3(t, h)


_one_third, _two_thirds = 1 / 3, 2 / 3


def rk4_alt_step(func, t, dt, y):
    """3/8 rule, as in torchdiffeq."""
    k1 = func(t, y)
    k2 = func(t + dt * _one_third, y + dt * k1 * _one_third)
    k3 = func(t + dt * _two_thirds, y + dt * (k2 - k1 * _one_third))
    k4 = func(t + dt, y + dt * (k1 - k2 + k3))
    return (k1 + 3 * (k2 + k3) + k4) * dt * 0.125, k1


class Model(nn.Module):
    """Latent neural ODE: GRU-free encoder, RK4 (3/8) on a uniform grid, linear interpolation at query times."""

    def __init__(self, obs, latent, hidden, steps):
        super().__init__()
        self.steps = steps
        self.enc = nn.Sequential(nn.Linear(obs, hidden), nn.ELU(), nn.Linear(hidden, 2 * latent))
        self.func = ODEFunc(latent + 1, hidden)
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.ELU(), nn.Linear(hidden, obs))

    def forward(self, x0, eps, t_query):
        mu, logvar = self.enc(x0).chunk(2, dim=-1)
        z0 = mu + eps * (0.5 * logvar).exp()
        y = torch.cat([z0, torch.zeros_like(z0[:, :1])], dim=1)   # one augmented dimension
        grid = torch.linspace(0, 1, self.steps + 1, dtype=x0.dtype, device=x0.device)
        sol = torch.empty(len(grid), *y.shape, dtype=y.dtype, device=y.device)
        sol[0] = y
        reg = x0.new_zeros(x0.shape[0])
        for j, (t0, t1) in enumerate(zip(grid[:-1], grid[1:])):
            dt = t1 - t0
            dy, f0 = rk4_alt_step(self.func, t0, dt, y)
            y = y + dy
            reg = reg + dt * f0.pow(2).sum(-1)
            sol[j + 1] = y
        # interpolate
        hi = torch.searchsorted(grid, t_query.contiguous()).clamp(1, self.steps)
        lo = hi - 1
        w = (t_query - grid[lo]) / (grid[hi] - grid[lo])
        b = torch.arange(y.shape[0], device=y.device)[:, None]
        zq = sol[lo, b] * (1 - w)[..., None] + sol[hi, b] * w[..., None]
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1)
        return self.dec(zq[..., :-1]), kl, reg


def get_inputs():
    return [torch.randn(21, 6), torch.randn(21, 5), torch.rand(21, 9)]


def get_init_inputs():
    return [6, 5, 40, 7]
