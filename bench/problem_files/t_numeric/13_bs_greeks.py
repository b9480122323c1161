import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Black-Scholes-Merton price and greeks for a mixed book of calls and puts."""

    def __init__(self, contract_size):
        super().__init__()
        self.size = contract_size

    @staticmethod
    def cdf(x):
        return 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))

    def forward(self, spot, strike, tau, vol, rate, div, is_call, qty):
        sqt = torch.sqrt(tau)
        sv = vol * sqt
        d1 = (torch.log(spot / strike) + (rate - div + 0.5 * vol * vol) * tau) / sv
        d2 = d1 - sv
        sign = torch.where(is_call, 1.0, -1.0)
        df = torch.exp(-rate * tau)
        dq = torch.exp(-div * tau)
        pdf = torch.exp(-0.5 * d1 * d1) / math.sqrt(2.0 * math.pi)
        n1, n2 = self.cdf(sign * d1), self.cdf(sign * d2)
        price = sign * (spot * dq * n1 - strike * df * n2)
        delta = sign * dq * n1
        gamma = dq * pdf / (spot * sv)
        vega = spot * dq * pdf * sqt
        theta = (-spot * dq * pdf * vol / (2.0 * sqt)
                 - sign * rate * strike * df * n2
                 + sign * div * spot * dq * n1)
        rho = sign * strike * tau * df * n2
        vanna = -dq * pdf * d2 / vol
        volga = vega * d1 * d2 / vol
        greeks = torch.stack((price, delta, gamma, vega / 100.0, theta / 365.0, rho / 100.0, vanna, volga))
        book = (greeks * qty).sum(dim=1) * self.size
        return greeks, book


def get_inputs():
    n = 200009
    return [
        80 + 40 * torch.rand(n), 80 + 40 * torch.rand(n), 0.05 + 2 * torch.rand(n),
        0.1 + 0.4 * torch.rand(n), 0.05 * torch.rand(n), 0.03 * torch.rand(n),
        torch.rand(n) > 0.5, torch.randint(-5, 6, (n,)).float() / n,
    ]


def get_init_inputs():
    return [100.0]
