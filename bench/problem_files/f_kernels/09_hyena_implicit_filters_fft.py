import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim, order, bands, width, freq):
        super().__init__()
        self.dim, self.order, self.bands, self.freq = dim, order, bands, freq
        self.inp = nn.Linear(dim, dim * (order + 1))
        self.short = nn.Conv1d(dim * (order + 1), dim * (order + 1), 3, padding=2, groups=dim * (order + 1))
        self.f1 = nn.Linear(2 * bands + 1, width)
        self.f2 = nn.Linear(width, width)
        self.f3 = nn.Linear(width, dim * order, bias=False)
        self.rate = nn.Parameter(torch.linspace(1.0, 30.0, dim))
        self.shift = nn.Parameter(torch.rand(1) * 0.1)
        self.skip = nn.Parameter(torch.randn(order, dim))
        self.out = nn.Linear(dim, dim)

    def filters(self, length, device):
        t = torch.linspace(0, 1, length, device=device).unsqueeze(-1)
        band = torch.linspace(1e-4, self.bands - 1, self.bands, device=device)
        w = 2 * torch.pi * torch.arange(length, device=device).unsqueeze(-1) / length
        z = torch.polar(torch.ones_like(band * w), -band * w)
        feats = torch.cat((t, z.real, z.imag), dim=-1)
        h = torch.sin(self.freq * self.f1(feats))
        h = torch.sin(self.freq * self.f2(h))
        h = self.f3(h).view(length, self.order, self.dim)
        h = h * (torch.exp(-t * self.rate.abs()) + self.shift).unsqueeze(1)
        h = h / h.abs().sum(0, keepdim=True)
        return h.permute(1, 2, 0)

    def forward(self, u):
        b, length, d = u.shape
        x = self.short(self.inp(u).transpose(1, 2))[..., :length]
        *gates, v = x.split(d, dim=1)
        k = self.filters(length, u.device)
        kf = torch.fft.rfft(k, n=2 * length)
        for i, gate in enumerate(reversed(gates)):
            v = v * gate
            y = torch.fft.irfft(torch.fft.rfft(v, n=2 * length) * kf[i], n=2 * length)[..., :length]
            v = y + v * self.skip[i].unsqueeze(-1)
        y = self.out((v * gates[0]).transpose(1, 2))
        power = kf.abs().square().mean(-1)
        return y, power


def get_inputs():
    return [torch.randn(2, 48, 499).transpose(1, 2)]


def get_init_inputs():
    return [48, 2, 8, 33, 10.0]
