import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import spectral_norm


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.ln = nn.LayerNorm(c, eps=1e-6)
        self.a = nn.Linear(c, 3 * c)
        self.b = nn.Linear(3 * c, c)
        self.gamma = nn.Parameter(torch.full((c,), 0.1))
        self.grn = nn.Parameter(torch.zeros(3 * c))

    def forward(self, x):
        y = self.dw(x).permute(0, 2, 3, 1)
        y = F.gelu(self.a(self.ln(y)), approximate="tanh")
        gx = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
        y = y + self.grn * (y * nx)
        y = (self.b(y) * self.gamma).permute(0, 3, 1, 2)
        return x + y


class Model(nn.Module):
    """Super resolution in channels_last, with a spectral normed critic and SSIM."""

    def __init__(self, c=16, up=2):
        super().__init__()
        self.up = up
        self.head = nn.Conv2d(3, c, 3, padding=1)
        self.body = nn.Sequential(Block(c), Block(c))
        self.tail = nn.Conv2d(c, 3 * up * up, 3, padding=1)
        self.critic = nn.Sequential(
            spectral_norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2, True),
            spectral_norm(nn.Conv2d(8, 16, 4, 2, 1)), nn.LeakyReLU(0.2, True),
        )
        self.score = spectral_norm(nn.Linear(16, 1))
        self.to(memory_format=torch.channels_last)

    @staticmethod
    def ssim(a, b):
        k = 5
        mu = lambda z: F.avg_pool2d(z, k, stride=1)
        ma, mb = mu(a), mu(b)
        va = mu(a * a) - ma ** 2
        vb = mu(b * b) - mb ** 2
        cov = mu(a * b) - ma * mb
        s = ((2 * ma * mb + 1e-4) * (2 * cov + 9e-4)) / ((ma ** 2 + mb ** 2 + 1e-4) * (va + vb + 9e-4))
        return s.mean(dim=[1, 2, 3])

    def forward(self, lr, hr):
        x = lr.contiguous(memory_format=torch.channels_last)
        h = self.head(x)
        h = h + self.body(h)
        res = F.pixel_shuffle(self.tail(h), self.up)
        base = F.interpolate(x, scale_factor=self.up, mode="bicubic", align_corners=False)
        sr = torch.sigmoid(res + torch.logit(base.clamp(0.02, 0.98)))
        f = self.critic(torch.cat((sr, hr.to(memory_format=torch.channels_last)), 0))
        s = self.score(f.mean((2, 3))).squeeze(-1)
        fake, real = s.tensor_split(2)
        rel = F.softplus(-(real - fake.mean())) + F.softplus(fake - real.mean())
        mse = F.mse_loss(sr, hr, reduction="none").flatten(1).mean(1)
        psnr = -10 * torch.log10(mse + 1e-8)
        cyc = F.avg_pool2d(sr, self.up)
        back = F.pixel_unshuffle(hr, self.up).unflatten(1, (3, -1)).mean(2)
        tv = (sr[..., 1:, :] - sr[..., :-1, :]).abs().sum() + (sr[..., 1:] - sr[..., :-1]).abs().sum()
        gray = torch.tensordot(sr, torch.tensor([0.299, 0.587, 0.114], device=sr.device), dims=([1], [0]))
        flat = sr.permute(0, 2, 3, 1).reshape(sr.size(0), -1)
        return sr, rel, psnr, self.ssim(sr, hr), (cyc - back).abs().amax((1, 2, 3)), tv / flat.shape[1], gray


def get_inputs():
    return [torch.rand(2, 3, 20, 24), torch.rand(2, 3, 40, 48)]


def get_init_inputs():
    return [16, 2]
