import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Order-2 Hyena operator: short depthwise conv, implicit long filters, FFT convolution."""

    def __init__(self, d, seq, emb, width, order):
        super().__init__()
        self.d, self.order = d, order
        self.inp = nn.Linear(d, (order + 1) * d)
        self.short = nn.Conv1d((order + 1) * d, (order + 1) * d, 3, padding=2, groups=(order + 1) * d)
        t = torch.linspace(0, 1, seq)[:, None]
        bands = (emb - 1) // 2
        f = torch.linspace(1e-4, bands - 1, bands)[None]
        w = 2 * torch.pi * torch.arange(seq)[:, None] / seq
        self.register_buffer("z", torch.cat([t, torch.cos(f * w), -torch.sin(f * w)], -1))
        self.register_buffer("t", t)
        self.register_buffer("deltas", torch.linspace(1.5, 15.0, d)[None])
        self.f1 = nn.Linear(emb, width)
        self.f2 = nn.Linear(width, width)
        self.f3 = nn.Linear(width, order * d, bias=False)
        self.freq = nn.Parameter(torch.full((1, width), 10.0))
        self.bias = nn.Parameter(torch.randn(order, d))
        self.out = nn.Linear(d, d)

    def filters(self, n):
        h = torch.sin(self.freq * self.f1(self.z[:n]))
        h = torch.sin(self.freq * self.f2(h))
        h = self.f3(h).view(n, self.order, self.d)
        h = h * torch.exp(-self.t[:n] * self.deltas).unsqueeze(1)
        return h.permute(1, 2, 0)

    def forward(self, u):
        b, n, d = u.shape
        p = self.short(self.inp(u).transpose(1, 2))[..., :n]
        *gates, v = p.split(d, dim=1)
        k = self.filters(n)
        for o, g in enumerate(gates):
            v = v * g
            kf = torch.fft.rfft(k[o], n=2 * n)
            vf = torch.fft.rfft(v, n=2 * n)
            y = torch.fft.irfft(vf * kf, n=2 * n)[..., :n]
            v = y + v * self.bias[o][:, None]
        return self.out(v.transpose(1, 2))


def get_inputs():
    return [torch.randn(2, 180, 48)]


def get_init_inputs():
    return [48, 180, 9, 32, 2]
