import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ActNorm(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.loc = nn.Parameter(0.05 * torch.randn(1, ch, 1, 1))
        self.log_scale = nn.Parameter(0.05 * torch.randn(1, ch, 1, 1))

    def forward(self, x):
        _, _, h, w = x.shape
        return self.log_scale.exp() * (x + self.loc), h * w * self.log_scale.sum()


class InvConv2dLU(nn.Module):
    def __init__(self, ch):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(ch, ch))
        p, l, u = torch.linalg.lu(q)
        s = torch.diagonal(u)
        self.register_buffer("w_p", p)
        self.register_buffer("u_mask", torch.triu(torch.ones(ch, ch), 1))
        self.register_buffer("l_mask", torch.tril(torch.ones(ch, ch), -1))
        self.register_buffer("s_sign", torch.sign(s))
        self.register_buffer("l_eye", torch.eye(ch))
        self.w_l = nn.Parameter(l.clone())
        self.w_s = nn.Parameter(torch.log(torch.abs(s)).clone())
        self.w_u = nn.Parameter(torch.triu(u, 1).clone())

    def calc_weight(self):
        lower = self.w_l * self.l_mask + self.l_eye
        upper = self.w_u * self.u_mask + torch.diag(self.s_sign * torch.exp(self.w_s))
        return (self.w_p @ lower @ upper).unsqueeze(2).unsqueeze(3)

    def forward(self, x):
        _, _, h, w = x.shape
        return F.conv2d(x, self.calc_weight()), h * w * torch.sum(self.w_s)


class ZeroConv2d(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=0)
        self.conv.weight.data.normal_(0, 0.01)
        self.conv.bias.data.zero_()
        self.scale = nn.Parameter(torch.zeros(1, o, 1, 1))

    def forward(self, x):
        out = self.conv(F.pad(x, [1, 1, 1, 1], value=1))
        return out * torch.exp(self.scale * 3)


class AffineCoupling(nn.Module):
    def __init__(self, ch, filters, swap):
        super().__init__()
        self.swap = swap
        self.net = nn.Sequential(
            nn.Conv2d(ch // 2, filters, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(filters, filters, 1), nn.ReLU(inplace=True),
            ZeroConv2d(filters, ch),
        )

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.swap:
            a, b = b, a
        log_s, t = self.net(a).chunk(2, 1)
        s = torch.sigmoid(log_s + 2)
        b = (b + t) * s
        logdet = torch.sum(torch.log(s).view(x.shape[0], -1), 1)
        out = torch.cat([b, a], 1) if self.swap else torch.cat([a, b], 1)
        return out, logdet


class Model(nn.Module):
    """Glow-like normalising flow: squeeze, actnorm, LU 1x1 conv, affine coupling,
    split with learned Gaussian prior; returns bits per dim."""

    def __init__(self, in_ch, n_flow, n_block, filters, n_bits=5):
        super().__init__()
        self.n_bins = 2.0 ** n_bits
        self.flows, self.priors = nn.ModuleList(), nn.ModuleList()
        ch = in_ch
        for i in range(n_block):
            ch *= 4
            steps = [nn.ModuleList([ActNorm(ch), InvConv2dLU(ch), AffineCoupling(ch, filters, j % 2 == 1)])
                     for j in range(n_flow)]
            self.flows.append(nn.ModuleList(steps))
            split = i < n_block - 1
            self.priors.append(ZeroConv2d(ch // 2, ch) if split else ZeroConv2d(ch, ch * 2))
            ch = ch // 2 if split else ch

    def forward(self, image, dequant):
        n_pixel = image[0].numel()
        x = torch.floor(image * (self.n_bins - 1)) / self.n_bins - 0.5 + dequant / self.n_bins
        logdet = torch.zeros(x.shape[0], device=x.device)
        log_p, zs = 0, []
        for i, (flow, prior) in enumerate(zip(self.flows, self.priors)):
            b, c, h, w = x.shape
            x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).contiguous()
            x = x.view(b, c * 4, h // 2, w // 2)
            for step in flow:
                for layer in step:
                    x, det = layer(x)
                    logdet = logdet + det
            x, z = x.chunk(2, 1) if i < len(self.flows) - 1 else (x, x)
            x = x.contiguous()
            mean, log_sd = prior(x if i < len(self.flows) - 1 else torch.zeros_like(x)).chunk(2, 1)
            lp = -0.5 * math.log(2 * math.pi) - log_sd - 0.5 * (z - mean) ** 2 / torch.exp(2 * log_sd)
            log_p = log_p + lp.view(b, -1).sum(1)
            zs.append(z.reshape(b, -1))
        bpd = (math.log(self.n_bins) * n_pixel - (logdet + log_p)) / (math.log(2) * n_pixel)
        return bpd.mean(), log_p, torch.cat(zs, dim=1)


def get_inputs():
    g = torch.Generator().manual_seed(16)
    return [torch.rand(5, 3, 40, 32, generator=g), torch.rand(5, 3, 40, 32, generator=g)]


def get_init_inputs():
    return [3, 4, 3, 104]
