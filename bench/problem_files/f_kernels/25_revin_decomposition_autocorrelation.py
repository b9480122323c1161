import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, length, horizon, channels, dim, kernels, top):
        super().__init__()
        self.kernels, self.top = kernels, top
        self.gamma = nn.Parameter(1 + 0.1 * torch.randn(channels))
        self.beta = nn.Parameter(0.1 * torch.randn(channels))
        self.route = nn.Linear(1, len(kernels))
        self.embed = nn.Conv1d(channels, dim, 3, padding=1, padding_mode="circular", bias=False)
        self.qk = nn.Linear(dim, 2 * dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, channels)
        self.season = nn.Linear(length, horizon)
        self.trend = nn.Parameter(torch.randn(channels, horizon, length) * length ** -0.5)
        self.spread = nn.Parameter(torch.tensor([-1.28, 0.0, 1.28]))

    def decompose(self, x):
        means = []
        for k in self.kernels:
            p = F.pad(x.transpose(1, 2), ((k - 1) // 2, k // 2), mode="replicate")
            means.append(F.avg_pool1d(p, k, 1).transpose(1, 2))
        means = torch.stack(means, -1)
        trend = (means * torch.softmax(self.route(x.unsqueeze(-1)), -1)).sum(-1)
        return x - trend, trend

    def autocorrelation(self, h):
        b, t, d = h.shape
        q, k = self.qk(h).transpose(1, 2).chunk(2, dim=1)
        v = self.v(h).transpose(1, 2)
        corr = torch.fft.irfft(torch.fft.rfft(q) * torch.conj(torch.fft.rfft(k)), n=t)
        weight, delay = corr.mean(1).topk(self.top, dim=-1)
        weight = torch.softmax(weight, -1)
        pos = torch.arange(t, device=h.device)
        twice = v.repeat(1, 1, 2)
        out = torch.zeros_like(v)
        for i in range(self.top):
            idx = (pos + delay[:, i : i + 1]).unsqueeze(1).expand(b, d, t)
            out = out + twice.gather(2, idx) * weight[:, i].view(b, 1, 1)
        return out.transpose(1, 2)

    def forward(self, x, observed):
        m = observed.to(x.dtype)
        n = m.sum(1, keepdim=True).clamp_min(1)
        mu = (x * m).sum(1, keepdim=True) / n
        sd = torch.sqrt(((x - mu).square() * m).sum(1, keepdim=True) / n + 1e-5)
        z = ((x - mu) / sd * self.gamma + self.beta) * m
        season, trend = self.decompose(z)
        h = self.embed(season.transpose(1, 2)).transpose(1, 2)
        h = h + self.autocorrelation(h)
        h, extra = self.decompose(h)
        h = h - h.mean(1, keepdim=True)
        s = self.season(self.proj(h).transpose(1, 2))
        tr = torch.einsum("btc,cht->bch", trend, self.trend)
        y = (s + tr).transpose(1, 2)
        scale = F.softplus(y - y.mean(1, keepdim=True))
        quant = y.unsqueeze(-1) + scale.unsqueeze(-1) * self.spread
        quant = (quant - self.beta.view(-1, 1)) / (self.gamma.view(-1, 1) + 1e-6) * sd.unsqueeze(-1) + mu.unsqueeze(-1)
        return quant, extra.mean(1)


def get_inputs():
    t = torch.arange(263.0).view(1, -1, 1)
    x = torch.sin(t * torch.rand(6, 1, 7)) + 0.01 * t * torch.randn(6, 1, 7) + 0.3 * torch.randn(6, 263, 7)
    return [x, torch.rand(6, 263, 7) < 0.93]


def get_init_inputs():
    return [263, 47, 7, 34, [13, 24, 49], 5]
