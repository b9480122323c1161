import torch
import torch.nn as nn


class Model(nn.Module):
    """Rolling-window risk report: beta, idiosyncratic vol, historical VaR/ES,
    skewness per window, and running drawdown with its worst value."""

    def __init__(self, window, stride, alpha):
        super().__init__()
        self.window, self.stride = window, stride
        self.k = max(1, int(alpha * window))

    def forward(self, ret, mkt):
        # ret (T, A) time-major, mkt (T,)
        r = ret.unfold(0, self.window, self.stride)            # (n, A, w)
        m = mkt.unfold(0, self.window, self.stride).unsqueeze(1)
        rc = r - r.mean(-1, keepdim=True)
        mc = m - m.mean(-1, keepdim=True)
        var_m = (mc * mc).mean(-1)
        beta = (rc * mc).mean(-1) / (var_m + 1e-8)
        resid = rc - beta.unsqueeze(-1) * mc
        ivol = resid.pow(2).mean(-1).sqrt() * (252 ** 0.5)
        sd = rc.pow(2).mean(-1).sqrt()
        skew = rc.pow(3).mean(-1) / (sd ** 3 + 1e-9)
        worst = torch.topk(r, self.k, dim=-1, largest=False).values
        var = -worst[..., -1]
        es = -worst.mean(-1)
        wealth = torch.exp(torch.cumsum(torch.log1p(ret), dim=0))
        peak = torch.cummax(wealth, dim=0).values
        dd = wealth / peak - 1.0
        return torch.stack((beta, ivol, skew, var, es), dim=-1), dd, dd.amin(dim=0)


def get_inputs():
    T, A = 260, 37
    mkt = 0.01 * torch.randn(T)
    ret = mkt[:, None] * (0.5 + torch.rand(A)) + 0.015 * torch.randn(T, A)
    return [ret, mkt]


def get_init_inputs():
    return [40, 3, 0.1]
