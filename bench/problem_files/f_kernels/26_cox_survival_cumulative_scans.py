import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, features, hidden, bins, sigma):
        super().__init__()
        self.bins, self.sigma = bins, sigma
        self.body = nn.Sequential(nn.Linear(features, hidden), nn.SELU(), nn.Linear(hidden, hidden), nn.Softsign())
        self.risk = nn.Linear(hidden, 1)
        self.hazard = nn.Linear(hidden, bins)
        self.register_buffer("cuts", torch.linspace(0.15, 3.0, bins - 1))

    def forward(self, x, time, event):
        h = self.body(x)
        risk = self.risk(h).squeeze(-1)
        ev = event.to(x.dtype)
        order = torch.argsort(time, descending=True)
        r, e = risk[order], ev[order]
        log_set = torch.logcumsumexp(r, dim=0)
        partial = -((r - log_set) * e).sum() / e.sum().clamp_min(1)
        step = (e * torch.exp(-log_set)).flip(0)
        base = step.cumsum(0)
        sorted_time = time[order].flip(0).contiguous()
        at_risk = torch.arange(time.shape[0], 0, -1, device=x.device)
        censor = torch.cumprod(1 - (1 - e.flip(0)) / (at_risk + 1), 0)
        place = torch.searchsorted(sorted_time, self.cuts, right=True)
        cum_base = F.pad(base, (1, 0))[place]
        g = F.pad(censor, (1, 0), value=1.0)[place].clamp_min(0.05)
        surv = torch.exp(-cum_base * risk.exp().unsqueeze(1))
        alive = (time.unsqueeze(1) > self.cuts).to(x.dtype)
        own = F.pad(censor, (1, 0), value=1.0)[torch.searchsorted(sorted_time, time)].clamp_min(0.05)
        brier = (surv.square() * (1 - alive) * ev.unsqueeze(1) / own.unsqueeze(1) + (1 - surv).square() * alive / g).mean(0)
        width = torch.diff(self.cuts)
        ibs = ((brier[1:] + brier[:-1]) * 0.5 * width).sum() / width.sum()
        logit = self.hazard(h)
        which = torch.bucketize(time, self.cuts)
        log_keep = F.logsigmoid(-logit)
        cum_keep = log_keep.cumsum(1)
        at = which.unsqueeze(1)
        log_h = F.logsigmoid(logit).gather(1, at) - log_keep.gather(1, at)
        nll = -(cum_keep.gather(1, at) + event.unsqueeze(1) * log_h).squeeze(1)
        curve = torch.cumprod(torch.sigmoid(-logit), 1)
        peak, where = torch.cummax(torch.sigmoid(logit) * curve, dim=1)
        trough = torch.cummin(curve * (1 + 0.1 * torch.tanh(logit)), dim=1).values
        pairs = (time.unsqueeze(1) < time.unsqueeze(0)) & event.unsqueeze(1)
        rank = torch.where(pairs, torch.sigmoid((risk.unsqueeze(1) - risk.unsqueeze(0)) / self.sigma), 0.0)
        concord = rank.sum() / pairs.sum().clamp_min(1)
        return partial, nll, ibs, concord, surv, peak[:, -1], trough.mean(0), base


def get_inputs():
    n = 787
    return [torch.randn(n, 29), torch.distributions.Exponential(1.0).sample((n,)) + 0.01, torch.rand(n) < 0.6]


def get_init_inputs():
    return [29, 45, 22, 0.1]
