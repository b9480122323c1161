import torch
import torch.nn as nn


class Model(nn.Module):
    """Max-plus and min-plus products, noisy-or, hazards through cumprod, monotone cummax, squared hinge."""

    def __init__(self, d, m, g, bins):
        super().__init__()
        self.g = g
        self.wp = nn.Parameter(torch.randn(m, d) * 0.5)
        self.wm = nn.Parameter(torch.randn(m, d) * 0.5)
        self.hz = nn.Linear(m // g, bins)
        self.qt = nn.Linear(m // g, bins)

    def forward(self, x, ev, cens):
        up = (x.unsqueeze(1) + self.wp).amax(-1)
        dn = (x.unsqueeze(1) - self.wm).amin(-1)
        mor = up + dn
        p = torch.sigmoid(2 * mor - 2)
        por = 1 - (1 - p).unflatten(1, (-1, self.g)).prod(-1)
        h = torch.sigmoid(self.hz(por) - 2)
        s = torch.cumprod(1 - h, 1)
        prev = torch.cat([torch.ones_like(s[:, :1]), s[:, :-1]], 1)
        bins = torch.arange(h.shape[1], device=x.device)
        e = ev.unsqueeze(1)
        like = torch.where(cens, s.gather(1, e).squeeze(1), (h * prev).gather(1, e).squeeze(1))
        nll = -torch.log(like.clamp(min=1e-7))
        risk = torch.logcumsumexp(mor.mean(1).flip(0), 0).flip(0)
        cox = torch.where(cens, 0.0, risk - mor.mean(1))
        mono = torch.cummax(self.qt(por), 1).values
        cross = (self.qt(por) - mono).square().sum(1)
        crps = ((1 - s) - (bins >= e).to(x.dtype)).square()
        crps = crps.masked_fill(cens.unsqueeze(1) & (bins > e), 0.0).sum(1)
        exp_t = prev.sum(1)
        i, j = exp_t[:499].unsqueeze(1), exp_t[-499:].unsqueeze(0)
        ok = (ev[:499, None] < ev[None, -499:]) & ~cens[:499, None]
        rank = (torch.clamp(0.5 - (j - i), min=0).square() * ok).sum() / ok.sum()
        soft = torch.logsumexp(mor * 4, 0) / 4 - mor.amax(0)
        conc = (((j > i) & ok).sum() / ok.sum()).to(x.dtype)
        return nll + 0.1 * cox + cross + crps, rank, soft, (mono[:, 1:] > mono[:, :-1]).sum(1), conc


def get_inputs():
    return [torch.randn(1201, 41), torch.randint(0, 23, (1201,)), torch.rand(1201) < 0.3]


def get_init_inputs():
    return [41, 99, 9, 23]
