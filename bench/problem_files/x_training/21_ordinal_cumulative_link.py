import torch
import torch.nn as nn
import torch.nn.functional as F

N, D, H, K, A = 16384, 577, 1000, 11, 6


class Model(nn.Module):
    """Cumulative link ordinal regression for several attributes: ordered thresholds by a
    cumulative sum of softplus steps, learned slopes, class log probabilities."""

    def __init__(self, dim, hidden, classes, attrs):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim)
        self.trunk = nn.Linear(dim, 2 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.ln = nn.LayerNorm(hidden)
        self.score = nn.Linear(hidden, attrs, bias=False)
        self.log_slope = nn.Parameter(torch.zeros(attrs))
        self.first = nn.Parameter(torch.full((attrs, 1), -2.0))
        self.steps = nn.Parameter(torch.randn(attrs, classes - 2) * 0.3 - 0.5)

    def forward(self, x, y, weight):
        a, b = self.trunk(self.bn(x)).tensor_split(2, dim=-1)
        h = torch.tanh(a) * torch.sigmoid(b)
        h = self.ln(h + F.mish(self.proj(h)))
        s = self.score(h)
        th = torch.cat([self.first, self.first + F.softplus(self.steps).cumsum(dim=-1)], dim=-1)
        z = (th - s.unsqueeze(-1)) * self.log_slope.exp().unsqueeze(-1)
        cdf = torch.sigmoid(z)
        cdf = F.pad(F.pad(cdf, (1, 0), value=0.0), (0, 1), value=1.0)
        logp = torch.log(cdf.diff(dim=-1) + 1e-2)
        nll = -logp.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        w = weight.softmax(dim=0)
        expect = (cdf[..., 1:-1]).sum(-1)
        return (nll * w).sum(dim=0), expect


def get_inputs():
    return [torch.randn(N, D), torch.randint(0, K, (N, A)), 0.3 * torch.randn(N, A)]


def get_init_inputs():
    return [D, H, K, A]
