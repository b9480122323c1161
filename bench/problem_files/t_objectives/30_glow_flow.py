import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class ActNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.loc = nn.Parameter(torch.randn(1, c, 1, 1) * 0.1)
        self.log_scale = nn.Parameter(torch.randn(1, c, 1, 1) * 0.1)

    def forward(self, x):
        h, w = x.shape[2:]
        return (x + self.loc) * self.log_scale.exp(), h * w * self.log_scale.sum()


class InvConvLU(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.register_buffer("p", torch.eye(c)[torch.randperm(c)])
        self.l = nn.Parameter(torch.randn(c, c) * 0.05)
        self.u = nn.Parameter(torch.randn(c, c) * 0.05)
        self.log_s = nn.Parameter(torch.randn(c) * 0.05)
        self.register_buffer("sign_s", torch.sign(torch.randn(c)))
        self.register_buffer("l_mask", torch.tril(torch.ones(c, c), -1))
        self.register_buffer("eye", torch.eye(c))

    def forward(self, x):
        w = self.p @ (self.l * self.l_mask + self.eye) @ (
            self.u * self.l_mask.T + torch.diag(self.sign_s * torch.exp(self.log_s))
        )
        return F.conv2d(x, w[:, :, None, None]), x.shape[2] * x.shape[3] * self.log_s.sum()


class Coupling(nn.Module):
    def __init__(self, c, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(c // 2, hidden, 3, padding=1), nn.ReLU(),
            nn.Conv2d(hidden, hidden, 1), nn.ReLU(),
            nn.Conv2d(hidden, c, 3, padding=1),
        )

    def forward(self, x):
        xa, xb = x.chunk(2, 1)
        log_s, t = self.net(xa).chunk(2, 1)
        s = torch.sigmoid(log_s + 2)
        yb = (xb + t) * s
        return torch.cat([xa, yb], 1), torch.log(s).flatten(1).sum(1)


class Model(nn.Module):
    """Two-scale Glow: squeeze, steps, split with learned prior; bits per dimension."""

    def __init__(self, hidden, steps, n_bits):
        super().__init__()
        self.n_bits = n_bits
        self.blocks = nn.ModuleList()
        c = 3
        for _ in range(2):
            c *= 4
            self.blocks.append(nn.ModuleList(
                nn.ModuleList([ActNorm(c), InvConvLU(c), Coupling(c, hidden)]) for _ in range(steps)
            ))
            c //= 2
        self.prior = nn.Conv2d(6, 12, 3, padding=1)

    @staticmethod
    def squeeze(x):
        b, c, h, w = x.shape
        x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4)
        return x.reshape(b, c * 4, h // 2, w // 2)

    @staticmethod
    def gaussian_logp(x, mean, log_sd):
        return (-0.5 * math.log(2 * math.pi) - log_sd - 0.5 * (x - mean) ** 2 * torch.exp(-2 * log_sd)).flatten(1).sum(1)

    def forward(self, x, dequant):
        n_bins = 2.0 ** self.n_bits
        x = torch.floor(x * 255 / 2 ** (8 - self.n_bits)) / n_bins - 0.5 + dequant / n_bins
        n_pixel = x[0].numel()
        logdet = logp = 0.0
        for i, block in enumerate(self.blocks):
            x = self.squeeze(x)
            for layers in block:
                for layer in layers:
                    x, d = layer(x)
                    logdet = logdet + d
            if i == 0:
                x, z = x.chunk(2, 1)
                mean, log_sd = self.prior(x).chunk(2, 1)
                logp = logp + self.gaussian_logp(z, mean, log_sd.clamp(-4, 4))
        logp = logp + self.gaussian_logp(x, torch.zeros_like(x), torch.zeros_like(x))
        loss = -math.log(n_bins) * n_pixel + logdet + logp
        return (-loss / (math.log(2) * n_pixel)).mean()


def get_inputs():
    return [torch.rand(5, 3, 28, 36) * 0.999, torch.rand(5, 3, 28, 36)]


def get_init_inputs():
    return [24, 2, 5]
