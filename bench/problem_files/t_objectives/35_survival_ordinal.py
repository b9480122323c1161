import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Multi-task clinical head: Cox (Breslow), discrete-time hazards, DeepHit ranking, CORAL ordinal severity."""

    def __init__(self, in_dim, hidden, n_bins, n_grades):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(in_dim, hidden), nn.SELU(), nn.Linear(hidden, hidden), nn.SELU())
        self.risk = nn.Linear(hidden, 1, bias=False)
        self.hazard = nn.Linear(hidden, n_bins)
        self.grade = nn.Linear(hidden, 1, bias=False)
        self.grade_bias = nn.Parameter(torch.linspace(1.0, -1.0, n_grades - 1))
        self.n_bins = n_bins
        self.n_grades = n_grades

    def cox(self, log_h, durations, events):
        idx = durations.sort(descending=True)[1]
        events = events[idx]
        log_h = log_h[idx]
        return -(log_h - log_h.logcumsumexp(0)).mul(events).sum().div(events.sum().clamp(min=1))

    def logistic_hazard(self, phi, bin_idx, events):
        y = torch.zeros_like(phi).scatter(1, bin_idx[:, None], events[:, None])
        bce = F.binary_cross_entropy_with_logits(phi, y, reduction="none")
        return bce.cumsum(1).gather(1, bin_idx[:, None]).view(-1).mean()

    def ranking(self, phi, bin_idx, events, sigma=0.2):
        log_surv = F.logsigmoid(-phi).cumsum(1)
        cif = 1 - log_surv.exp()
        at = cif[:, bin_idx].t()
        own = at.diagonal().unsqueeze(1)
        acceptable = (bin_idx[:, None] < bin_idx[None, :]) & (events[:, None] > 0)
        eta = torch.exp((at - own) / sigma)
        return (eta * acceptable).mean()

    def forward(self, x, durations, events, grades):
        h = self.net(x)
        bin_idx = (durations * self.n_bins).long().clamp(0, self.n_bins - 1)
        cox = self.cox(self.risk(h).squeeze(-1), durations, events)
        phi = self.hazard(h)
        haz = self.logistic_hazard(phi, bin_idx, events)
        rank = self.ranking(phi, bin_idx, events)
        logits = self.grade(h) + self.grade_bias
        levels = (grades[:, None] > torch.arange(self.n_grades - 1, device=x.device)).float()
        coral = -(F.logsigmoid(logits) * levels + (F.logsigmoid(logits) - logits) * (1 - levels)).sum(1).mean()
        return cox + haz + 0.2 * rank + 0.5 * coral


def get_inputs():
    n = 310
    return [torch.randn(n, 75), torch.rand(n), (torch.rand(n) > 0.4).float(), torch.randint(0, 6, (n,))]


def get_init_inputs():
    return [75, 100, 22, 6]
