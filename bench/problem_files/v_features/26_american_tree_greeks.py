import torch
import torch.nn as nn
from torch.func import grad, jvp, vmap


def black_scholes_put(s, k, t, vol, r):
    d1 = (torch.log(s / k) + (r + 0.5 * vol * vol) * t) / (vol * torch.sqrt(t))
    d2 = d1 - vol * torch.sqrt(t)
    return k * torch.exp(-r * t) * torch.special.ndtr(-d2) - s * torch.special.ndtr(-d1)


class Model(nn.Module):
    """American puts on a binomial tree by backward induction, corrected by the European tree
    as a control variate; Greeks by vmap(grad), vega's companion by jvp of the gradient, and
    the exercise boundary. The interest rate and the dividend are 0-dim tensors."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.register_buffer("level", torch.arange(-steps, steps + 1, 2))

    def trees(self, s, k, t, vol, r, div):
        n = self.steps
        dt = t / n
        up = torch.exp(vol * torch.sqrt(dt))
        prob = (torch.exp((r - div) * dt) - up.reciprocal()) / (up - up.reciprocal())
        disc = torch.exp(-r * dt)
        spot = s * torch.exp(self.level * (vol * torch.sqrt(dt)))
        payoff = torch.relu(k - spot)
        american, european = payoff, payoff
        price = spot
        for _ in range(n):
            price = price[1:] / up
            hold = disc * torch.lerp(american[:-1], american[1:], prob)
            american = torch.maximum(hold, k - price)
            european = disc * (prob * european[1:] + (1 - prob) * european[:-1])
        return american.squeeze(0), european.squeeze(0)

    def price(self, s, k, t, vol, r, div):
        american, european = self.trees(s, k, t, vol, r, div)
        exact = black_scholes_put(s * torch.exp(-div * t), k, t, vol, r)
        return american + (exact - european)

    def forward(self, s, k, t, vol, r, div):
        dims = (0, 0, 0, 0, None, None)
        value = vmap(self.price, dims)(s, k, t, vol, r, div)
        american, european = vmap(self.trees, dims)(s, k, t, vol, r, div)
        delta, theta, vega, rho = vmap(grad(self.price, argnums=(0, 2, 3, 4)), dims)(s, k, t, vol, r, div)

        def smooth_delta(x):
            each = vmap(grad(black_scholes_put), (0, 0, 0, 0, None))
            return each(x, k, t, vol, r)

        bs_delta, bs_gamma = jvp(smooth_delta, (s,), (torch.ones_like(s),))
        premium = (american - european).clamp(min=0)
        d2 = (torch.log(s / k) + (r - div - 0.5 * vol**2) * t) / (vol * t.sqrt())
        tail = torch.special.log_ndtr(-d2) - torch.special.log_ndtr(d2)
        intrinsic = torch.heaviside(k - s, torch.tensor(0.5, dtype=s.dtype)) * (k - s)
        early = value <= intrinsic * (1 + 1e-3)
        bucket = torch.bucketize(s / k, torch.tensor([0.85, 0.95, 1.05, 1.15], dtype=s.dtype))
        book = torch.zeros(5, 4, dtype=s.dtype).index_add(0, bucket, torch.stack([delta, theta, vega, rho], 1))
        hedge = torch.where(early, -torch.ones_like(delta), delta)
        return value, premium, delta, -theta, vega, rho, bs_delta, bs_gamma, tail, early, book, hedge


def get_inputs():
    b = 131
    s = 80 + 40 * torch.rand(b)
    k = 100 + 10 * torch.randn(b)
    t = 0.2 + 1.5 * torch.rand(b)
    vol = 0.15 + 0.3 * torch.rand(b)
    return [x.double() for x in (s, k, t, vol)] + [torch.tensor(0.04), torch.tensor(0.01)]


def get_init_inputs():
    return [49]
