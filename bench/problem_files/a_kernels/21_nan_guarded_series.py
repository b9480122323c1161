import torch
import torch.nn as nn


class Model(nn.Module):
    """NaN series with whole columns missing: guarded moments, forward fill, decay, empty softmax rows."""

    def __init__(self, c):
        super().__init__()
        self.w = nn.Parameter(torch.rand(c) * 0.5)
        self.b = nn.Parameter(torch.randn(c) * 0.1)
        self.q = nn.Parameter(torch.randn(c, c) * 0.5)

    def forward(self, x):
        ok = ~torch.isnan(x)
        n = ok.sum(1, keepdim=True)
        x0 = torch.where(ok, x, 0.0)
        mu = x0.sum(1, keepdim=True) / n.clamp(min=1)
        dev = torch.where(ok, x0 - mu, 0.0)
        var = dev.square().sum(1, keepdim=True) / (n - 1).clamp(min=1)
        live = var > 0
        sd = torch.sqrt(torch.where(live, var, 1.0))
        z = torch.where(live, dev / sd, 0.0)
        t = torch.arange(x.shape[1], device=x.device).view(1, -1, 1)
        last = torch.where(ok, t, -1).cummax(1).values
        ff = torch.where(last >= 0, z.gather(1, last.clamp(min=0)), 0.0)
        g = torch.exp(-(self.w * (t - last) + self.b).clamp(min=0))
        zi = torch.where(ok, z, g * ff)
        s = (zi @ self.q).masked_fill(~ok, float("-inf"))
        mx = s.amax(-1, keepdim=True)
        e = torch.exp(s - torch.where(torch.isinf(mx), 0.0, mx))
        tot = e.sum(-1, keepdim=True)
        att = torch.where(tot > 0, e / torch.where(tot > 0, tot, 1.0), 1.0 / x.shape[-1])
        new, old = zi[:, 1:], zi[:, :-1]
        ret = torch.where(new * old > 0, new / torch.where(old == 0, 1.0, old), 1.0)
        ret = torch.log(ret.clamp(1e-3, 1e3))
        ratio = torch.nan_to_num(n / (x.shape[1] - n), nan=0.0, posinf=99.0)
        lo = torch.where(ok, x, float("inf")).amin((1, 2))
        hi = torch.where(ok, x, float("-inf")).amax((1, 2))
        cross = torch.nanmean(x - torch.nansum(x, -1, keepdim=True), dim=(0, 1))
        y = (att * zi).sum(-1) * torch.tanh(ret.abs().sum(-1).mean(1, keepdim=True))
        return y, zi, torch.where(lo <= hi, hi - lo, 0.0), cross, ratio.squeeze(1), (x != x).all(-1).sum(1)


def get_inputs():
    x = torch.randn(53, 2003, 7) + torch.rand(7)
    x = torch.where(torch.rand(53, 2003, 7) < 0.3, float("nan"), x)
    return [torch.where(torch.rand(53, 1, 7) < 0.05, float("nan"), x)]


def get_init_inputs():
    return [7]
