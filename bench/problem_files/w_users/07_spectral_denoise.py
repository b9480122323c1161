from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Spec:
    mag: torch.Tensor
    phase: torch.Tensor
    power: torch.Tensor


def mel_bank(n_freq, n_mels, sr=8000.0):
    def h2m(f):
        return 2595.0 * torch.log10(1.0 + f / 700.0)

    def m2h(m):
        return 700.0 * (10.0 ** (m / 2595.0) - 1.0)

    pts = m2h(torch.linspace(0.0, 1.0, n_mels + 2) * h2m(torch.tensor(sr / 2)))
    freqs = torch.linspace(0, sr / 2, n_freq)
    d = pts[1:] - pts[:-1]
    slopes = pts.unsqueeze(0) - freqs.unsqueeze(1)
    return torch.clamp(torch.min(-slopes[:, :-2] / d[:-1], slopes[:, 2:] / d[1:]), min=0)


class Model(nn.Module):
    def __init__(self, n_fft=256, hop=64, n_mels=24):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("fb", mel_bank(n_fft // 2 + 1, n_mels))
        dct = torch.cos(torch.pi / n_mels * (torch.arange(n_mels) + 0.5)[None] * torch.arange(13)[:, None])
        self.register_buffer("dct", dct * (2.0 / n_mels) ** 0.5)
        self.register_buffer("noise", torch.full((n_fft // 2 + 1,), 0.5))
        self.rnn = nn.GRU(n_mels, 32, batch_first=True)
        self.mask = nn.Linear(32, n_fft // 2 + 1)
        self.preemph = nn.Parameter(torch.tensor([0.97]))

    def analyse(self, x):
        S = torch.stft(x, self.n_fft, self.hop, window=self.window, center=True,
                       pad_mode="reflect", return_complex=True)
        power = S.real.square() + S.imag.square()
        return S, Spec(torch.sqrt(power + 1e-8), torch.atan2(S.imag, S.real + 1e-12), power)

    def forward(self, wav):
        x = torch.cat([wav[:, :1], wav[:, 1:] - self.preemph * wav[:, :-1]], dim=1)
        S, sp = self.analyse(x)
        mel = torch.matmul(sp.power.transpose(1, 2), self.fb)
        logmel = torch.log10(mel.clamp(min=1e-5)) * 10
        logmel = torch.maximum(logmel, logmel.amax(dim=(1, 2), keepdim=True) - 80.0)
        logmel = (logmel - logmel.mean(1, keepdim=True)) / (logmel.std(1, keepdim=True) + 1e-3)
        h, _ = self.rnn(logmel)
        gate = torch.sigmoid(self.mask(h)).transpose(1, 2)
        # spectral subtraction with a running noise floor
        floor = sp.power.detach().kthvalue(4, dim=2).values.mean(0)
        if self.training:
            self.noise.lerp_(floor, 0.05)
        sub = torch.clamp(sp.power - self.noise[None, :, None], min=0) / (sp.power + 1e-6)
        m = 0.5 * gate + 0.5 * torch.sqrt(sub + 1e-4)
        Y = S * m.to(S.dtype)
        y = torch.istft(Y, self.n_fft, self.hop, window=self.window, length=wav.shape[1])
        mfcc = F.linear(logmel, self.dct)
        delta = (mfcc[:, 2:] - mfcc[:, :-2]) * 0.5
        delta = F.pad(delta.transpose(1, 2), (1, 1), mode="replicate").transpose(1, 2)
        centroid = (sp.mag * torch.linspace(0, 1, sp.mag.shape[1], device=wav.device)[:, None]).sum(1) / sp.mag.sum(1)
        zcr = (torch.sign(wav[:, 1:]) != torch.sign(wav[:, :-1])).float().mean(-1)
        snr = 10 * torch.log10(wav.pow(2).sum(-1) / ((wav - y) ** 2).sum(-1).clamp_min(1e-8))
        dphase = torch.remainder(torch.diff(sp.phase.detach(), dim=-1) + torch.pi, 2 * torch.pi) - torch.pi
        return y, torch.cat([mfcc, delta], -1), centroid, zcr, snr, dphase.cos()


def get_inputs():
    return [torch.randn(3, 4096)]


def get_init_inputs():
    return [256, 64, 24]
