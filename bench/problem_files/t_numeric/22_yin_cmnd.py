import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """YIN pitch analysis: framing, FFT autocorrelation, difference function,
    cumulative mean normalisation, and a soft (expected-lag) pitch estimate."""

    def __init__(self, sr, frame, hop, tau_min, tau_max, sharp):
        super().__init__()
        self.sr, self.frame, self.hop = sr, frame, hop
        self.tau_min, self.tau_max, self.sharp = tau_min, tau_max, sharp

    def forward(self, wav):
        W = self.frame - self.tau_max
        fr = wav.unfold(1, self.frame, self.hop)                    # (B, n, frame)
        fr = fr - fr.mean(-1, keepdim=True)
        nfft = 1 << (2 * self.frame - 1).bit_length()
        X = torch.fft.rfft(fr, nfft)
        H = torch.fft.rfft(fr[..., :W], nfft)
        acf = torch.fft.irfft(X * H.conj(), nfft)[..., : self.tau_max]
        sq = torch.nn.functional.pad(torch.cumsum(fr * fr, dim=-1), (1, 0))
        energy = sq[..., W: W + self.tau_max] - sq[..., : self.tau_max]
        diff = (energy[..., :1] + energy - 2.0 * acf).clamp(min=0.0)
        lag = torch.arange(1, self.tau_max, device=wav.device, dtype=wav.dtype)
        cum = torch.cumsum(diff[..., 1:], dim=-1)
        cmnd = diff[..., 1:] * lag / (cum + 1e-2)
        cand = cmnd[..., self.tau_min - 1:]
        w = torch.softmax(-self.sharp * cand, dim=-1)
        tau = (w * lag[self.tau_min - 1:]).sum(-1)
        aper = (w * cand).sum(-1)
        rms = torch.sqrt(energy[..., 0] / W + 1e-8)
        return self.sr / tau, aper, rms, cmnd


def get_inputs():
    B, n, sr = 3, 8000, 16000
    t = torch.arange(n) / sr
    f0 = 110 + 200 * torch.rand(B, 1)
    wav = sum(torch.sin(2 * math.pi * k * f0 * t) / k for k in (1, 2, 3)) + 0.2 * torch.randn(B, n)
    return [wav]


def get_init_inputs():
    return [16000.0, 600, 160, 32, 240, 12.0]
