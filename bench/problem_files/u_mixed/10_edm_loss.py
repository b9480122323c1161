import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def mp_silu(x):
    return F.silu(x) / 0.596


class FourierEmbedding(nn.Module):
    def __init__(self, num_channels, scale=16):
        super().__init__()
        self.register_buffer("freqs", torch.randn(num_channels // 2) * scale)

    def forward(self, x):
        x = x.ger((2 * math.pi * self.freqs).to(x.dtype))
        return torch.cat([x.cos(), x.sin()], dim=1)


class ResBlock(nn.Module):
    def __init__(self, ch, emb):
        super().__init__()
        self.norm0 = nn.GroupNorm(4, ch)
        self.conv0 = nn.Conv2d(ch, ch, 3, padding=1)
        self.affine = nn.Linear(emb, ch * 2)
        self.norm1 = nn.GroupNorm(4, ch)
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x, emb):
        orig = x
        x = self.conv0(F.silu(self.norm0(x)))
        params = self.affine(emb).unsqueeze(2).unsqueeze(3).to(x.dtype)
        scale, shift = params.chunk(chunks=2, dim=1)
        x = F.silu(torch.addcmul(shift, self.norm1(x), scale + 1))
        x = self.conv1(x)
        return x.add_(orig) * math.sqrt(0.5)


class Model(nn.Module):
    """EDM preconditioned denoiser with the log-normal sigma training loss and uncertainty weighting."""

    def __init__(self, img_ch, ch, emb, sigma_data=0.5, P_mean=-1.2, P_std=1.2):
        super().__init__()
        self.sigma_data, self.P_mean, self.P_std = sigma_data, P_mean, P_std
        self.map_noise = FourierEmbedding(ch)
        self.map0, self.map1 = nn.Linear(ch, emb), nn.Linear(emb, emb)
        self.conv_in = nn.Conv2d(img_ch, ch, 3, padding=1)
        self.enc = ResBlock(ch, emb)
        self.mid = ResBlock(ch, emb)
        self.dec = ResBlock(ch, emb)
        self.skip = nn.Conv2d(2 * ch, ch, 1)
        self.conv_out = nn.Conv2d(ch, img_ch, 3, padding=1)
        self.logvar = nn.Linear(ch, 1)

    def net(self, x, c_noise):
        fe = self.map_noise(c_noise)
        emb = F.silu(self.map1(F.silu(self.map0(fe))))
        h0 = self.enc(self.conv_in(x), emb)
        h = self.mid(F.avg_pool2d(h0, 2), emb)
        h = F.interpolate(h, size=h0.shape[-2:], mode="nearest")
        h = self.dec(self.skip(torch.cat([h, h0], dim=1)), emb)
        return self.conv_out(mp_silu(h)), self.logvar(fe)

    def denoise(self, x, sigma):
        sigma = sigma.to(torch.float32).reshape(-1, 1, 1, 1)
        c_skip = self.sigma_data ** 2 / (sigma ** 2 + self.sigma_data ** 2)
        c_out = sigma * self.sigma_data / (sigma ** 2 + self.sigma_data ** 2).sqrt()
        c_in = 1 / (self.sigma_data ** 2 + sigma ** 2).sqrt()
        c_noise = sigma.log() / 4
        F_x, logvar = self.net(c_in * x, c_noise.flatten())
        return c_skip * x + c_out * F_x.to(torch.float32), logvar.reshape(-1, 1, 1, 1)

    def forward(self, images, rnd_normal, noise):
        sigma = (rnd_normal * self.P_std + self.P_mean).exp()
        weight = (sigma ** 2 + self.sigma_data ** 2) / (sigma * self.sigma_data) ** 2
        n = noise * sigma
        D_yn, logvar = self.denoise(images + n, sigma)
        loss = (weight / logvar.exp()) * ((D_yn - images) ** 2) + logvar
        return loss.mean(dim=(1, 2, 3)), D_yn


def get_inputs():
    return [torch.rand(2, 3, 14, 14) * 2 - 1, torch.randn(2, 1, 1, 1), torch.randn(2, 3, 14, 14)]


def get_init_inputs():
    return [3, 16, 32]
