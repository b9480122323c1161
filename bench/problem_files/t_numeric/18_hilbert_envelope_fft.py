import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Zero-phase FFT band-pass bank, analytic signal, envelope, instantaneous
    phase increments (complex), and phase-locking values between channels."""

    def __init__(self, fs, bands, n):
        super().__init__()
        f = torch.fft.fftfreq(n, d=1.0 / fs)
        gains = []
        for lo, hi in bands:
            g = 1.0 / (1.0 + torch.exp(-(f - lo) * 2.0)) * 1.0 / (1.0 + torch.exp((f - hi) * 2.0))
            gains.append(2.0 * g * (f > 0))
        self.register_buffer("gain", torch.stack(gains))

    def forward(self, x):
        # x: (B, C, n)
        n = x.shape[-1]
        x = x - x.mean(-1, keepdim=True)
        spec = torch.fft.fft(x)
        analytic = torch.fft.ifft(spec.unsqueeze(2) * self.gain)        # (B, C, bands, n)
        env = analytic.abs()
        # regularised unit phasors
        unit = analytic / torch.sqrt(env * env + 1e-3)
        plv = torch.einsum("bikt,bjkt->bkij", unit, unit.conj()) / n
        step = analytic[..., 1:] * analytic[..., :-1].conj()
        mean_step = step.mean(-1)
        freq = torch.atan2(mean_step.imag, mean_step.real) / (2 * math.pi)
        return env, plv.abs(), freq, torch.view_as_real(mean_step)


def get_inputs():
    B, C, n = 3, 16, 1500
    t = torch.arange(n) / 250.0
    x = torch.sin(2 * math.pi * (6 + 14 * torch.rand(B, C, 1)) * t) + 0.5 * torch.randn(B, C, n)
    return [x]


def get_init_inputs():
    return [250.0, [(4.0, 8.0), (8.0, 13.0), (13.0, 30.0), (30.0, 45.0)], 1500]
