import torch
import torch.nn as nn
import torch.nn.functional as F


def fft2c(x):
    x = torch.fft.ifftshift(x, dim=(-2, -1))
    x = torch.fft.fft2(x, norm="ortho")
    return torch.fft.fftshift(x, dim=(-2, -1))


def ifft2c(x):
    x = torch.fft.ifftshift(x, dim=(-2, -1))
    x = torch.fft.ifft2(x, norm="ortho")
    return torch.fft.fftshift(x, dim=(-2, -1))


class Regularizer(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, ch, 3, padding=1), nn.InstanceNorm2d(ch), nn.LeakyReLU(0.2),
            nn.Conv2d(ch, 2, 3, padding=1))

    def forward(self, img):
        x = torch.view_as_real(img).permute(0, 3, 1, 2)
        b, c, h, w = x.shape
        flat = x.reshape(b, c, -1)
        mean = flat.mean(2).view(b, c, 1, 1)
        std = flat.std(2).view(b, c, 1, 1) + 1e-6
        x = (x - mean) / std
        ph, pw = (-h) % 4, (-w) % 4
        x = F.pad(x, (pw // 2, pw - pw // 2, ph // 2, ph - ph // 2))
        x = self.net(x)
        x = x[..., ph // 2:ph // 2 + h, pw // 2:pw // 2 + w]
        x = x * std + mean
        return torch.view_as_complex(x.permute(0, 2, 3, 1).contiguous())


class Model(nn.Module):
    """Unrolled multi-coil MRI reconstruction (VarNet style): soft data consistency plus learned refinement."""

    def __init__(self, cascades=2, ch=8):
        super().__init__()
        self.regs = nn.ModuleList([Regularizer(ch) for _ in range(cascades)])
        self.dc_weight = nn.Parameter(torch.ones(cascades))

    def forward(self, kspace_ri, sens_ri, mask):
        # (B, C, H, W, 2), same, (B, 1, 1, W) integer sampling mask
        ref = torch.view_as_complex(kspace_ri)
        sens = torch.view_as_complex(sens_ri)
        rss = sens.abs().pow(2).sum(1, keepdim=True).sqrt()
        sens = sens / rss.clamp(min=1e-6)
        mask = mask.bool()
        zero = torch.zeros(1, 1, 1, 1, dtype=ref.dtype, device=ref.device)
        ref = torch.where(mask, ref, zero)
        k = ref.clone()
        for i, reg in enumerate(self.regs):
            soft_dc = torch.where(mask, k - ref, zero) * self.dc_weight[i]
            img = (ifft2c(k) * sens.conj()).sum(dim=1)
            k = k - soft_dc - fft2c(reg(img).unsqueeze(1) * sens)
        coils = ifft2c(k)
        return coils.abs().square().sum(1).sqrt()


def get_inputs():
    mask = (torch.rand(2, 1, 1, 38) < 0.35).long()
    mask[..., 15:23] = 1
    return [torch.randn(2, 4, 42, 38, 2), torch.randn(2, 4, 42, 38, 2), mask]


def get_init_inputs():
    return [2, 8]
