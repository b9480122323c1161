import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ActNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, c, 1, 1) * 0.05)
        self.logs = nn.Parameter(torch.randn(1, c, 1, 1) * 0.05)

    def forward(self, x, logdet, reverse=False):
        dims = x.size(2) * x.size(3)
        if not reverse:
            return (x + self.bias) * torch.exp(self.logs), logdet + self.logs.sum() * dims
        return x * torch.exp(-self.logs) - self.bias, logdet - self.logs.sum() * dims


class InvConv1x1LU(nn.Module):
    def __init__(self, c):
        super().__init__()
        w = torch.linalg.qr(torch.randn(c, c))[0]
        p, l, u = torch.linalg.lu(w)
        s = torch.diagonal(u)
        self.register_buffer("p", p)
        self.register_buffer("sign_s", torch.sign(s))
        self.lower = nn.Parameter(l)
        self.log_s = nn.Parameter(torch.log(torch.abs(s)))
        self.upper = nn.Parameter(torch.triu(u, 1))

    def weight(self):
        c = self.p.shape[0]
        eye = torch.eye(c, device=self.p.device)
        l_mask = torch.tril(torch.ones(c, c, device=self.p.device), -1)
        lower = self.lower * l_mask + eye
        upper = self.upper * l_mask.t().contiguous() + torch.diag(self.sign_s * torch.exp(self.log_s))
        return self.p @ (lower @ upper)

    def forward(self, x, logdet):
        c = x.size(1)
        z = F.conv2d(x, self.weight().view(c, c, 1, 1))
        return z, logdet + self.log_s.sum() * x.size(2) * x.size(3)


class Coupling(nn.Module):
    def __init__(self, c, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(c // 2, hidden, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, 1), nn.ReLU(inplace=True),
            nn.Conv2d(hidden, c, 3, padding=1))
        self.scale = nn.Parameter(torch.zeros(1, c, 1, 1))
        nn.init.normal_(self.net[-1].weight, std=0.02)

    def forward(self, x, logdet):
        z1, z2 = x.chunk(2, dim=1)
        h = self.net(z1) * torch.exp(self.scale * 3)
        shift, scale = h[:, 0::2], h[:, 1::2]
        scale = torch.sigmoid(scale + 2.0)
        z2 = (z2 + shift) * scale
        logdet = torch.sum(torch.log(scale), dim=[1, 2, 3]) + logdet
        return torch.cat((z1, z2), dim=1), logdet


def gaussian_logp(x, mean, logs):
    ll = -0.5 * (logs * 2.0 + ((x - mean) ** 2) / torch.exp(logs * 2.0) + math.log(2 * math.pi))
    return ll.sum(dim=[1, 2, 3])


def squeeze2d(x, f=2):
    B, C, H, W = x.size()
    x = x.view(B, C, H // f, f, W // f, f)
    return x.permute(0, 1, 3, 5, 2, 4).contiguous().view(B, C * f * f, H // f, W // f)


class Model(nn.Module):
    """Two-scale Glow: actnorm, LU-parametrised 1x1 conv, affine coupling; returns bits per dim."""

    def __init__(self, in_ch, hidden, K, L):
        super().__init__()
        self.levels, self.splits = nn.ModuleList(), nn.ModuleList()
        c = in_ch
        for i in range(L):
            c *= 4
            self.levels.append(nn.ModuleList(
                nn.ModuleList([ActNorm(c), InvConv1x1LU(c), Coupling(c, hidden)]) for _ in range(K)))
            if i < L - 1:
                self.splits.append(nn.Conv2d(c // 2, c, 3, padding=1))
                c //= 2
        self.prior = nn.Parameter(torch.zeros(1, 2 * c, 1, 1))

    def forward(self, x, u):
        n_bins = 32.0
        B, C, H, W = x.shape
        x = torch.floor(x * n_bins).clamp_(0, n_bins - 1) / n_bins - 0.5 + u / n_bins
        objective = torch.zeros(B, device=x.device) - math.log(n_bins) * C * H * W
        z = x
        for i, level in enumerate(self.levels):
            z = squeeze2d(z)
            for step in level:
                for layer in step:
                    z, objective = layer(z, objective)
            if i < len(self.splits):
                z, zout = torch.split(z, z.shape[1] // 2, dim=1)
                mean, logs = self.splits[i](z).chunk(2, 1)
                objective = objective + gaussian_logp(zout, mean, logs * 0.1)
        mean, logs = self.prior.expand(B, -1, *z.shape[2:]).chunk(2, 1)
        objective = objective + gaussian_logp(z, mean, logs)
        bpd = -objective / (math.log(2.0) * C * H * W)
        return bpd, z


def get_inputs():
    return [torch.rand(3, 3, 16, 16), torch.rand(3, 3, 16, 16)]


def get_init_inputs():
    return [3, 20, 3, 2]
