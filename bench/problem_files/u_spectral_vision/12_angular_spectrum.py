import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Band-limited angular spectrum propagation and a few Gerchberg-Saxton steps from a learned phase mask."""

    def __init__(self, n=40, wavelength=0.532, dx=1.0, z=60.0, iters=3):
        super().__init__()
        self.wavelength = wavelength
        self.dx = dx
        self.iters = iters
        self.z = nn.Parameter(torch.tensor(float(z)))
        self.phase = nn.Parameter(0.1 * torch.randn(n, n))

    def transfer(self, ny, nx, z, device):
        fy = torch.fft.fftfreq(ny, d=self.dx, device=device)
        fx = torch.fft.fftfreq(nx, d=self.dx, device=device)
        FY, FX = torch.meshgrid(fy, fx, indexing="ij")
        arg = 1.0 / self.wavelength ** 2 - FX ** 2 - FY ** 2
        kz = 2 * math.pi * torch.sqrt(arg.clamp(min=0))
        H = torch.exp(1j * kz * z)
        # band limit of Matsushima & Shimobaba
        zd = z.detach().abs()
        u = 1.0 / (self.wavelength * torch.sqrt((2 * zd / (nx * self.dx)) ** 2 + 1))
        v = 1.0 / (self.wavelength * torch.sqrt((2 * zd / (ny * self.dx)) ** 2 + 1))
        keep = (FX.abs() < u) & (FY.abs() < v) & (arg > 0)
        return torch.where(keep, H, torch.zeros_like(H))

    def propagate(self, field, H):
        ny, nx = field.shape[-2:]
        py, px = ny // 2, nx // 2
        field = F.pad(field, (px, px, py, py))
        out = torch.fft.ifft2(torch.fft.fft2(field) * H)
        return out[..., py:py + ny, px:px + nx]

    def forward(self, src_amp, target_amp):
        ny, nx = src_amp.shape[-2:]
        H = self.transfer(ny + 2 * (ny // 2), nx + 2 * (nx // 2), self.z, src_amp.device)
        src_amp = src_amp.abs()
        target_amp = target_amp.abs()
        field = src_amp * torch.exp(1j * self.phase)
        for _ in range(self.iters):
            far = self.propagate(field, H)
            far = target_amp * far / (far.abs() + 1e-3)
            back = self.propagate(far, H.conj())
            field = src_amp * back / (back.abs() + 1e-3)
        far = self.propagate(field, H)
        intensity = far.real ** 2 + far.imag ** 2
        err = F.mse_loss(intensity.sqrt(), target_amp, reduction="none").mean((-2, -1))
        return intensity, err


def get_inputs():
    return [torch.rand(1, 40, 40) + 0.5, torch.rand(1, 40, 40) + 0.1]


def get_init_inputs():
    return [40, 0.532, 1.0, 60.0, 3]
