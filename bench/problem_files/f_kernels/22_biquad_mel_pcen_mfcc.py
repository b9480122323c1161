import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, rate, n_fft, hop, mels, coeffs, smooth):
        super().__init__()
        self.n_fft, self.hop, self.smooth = n_fft, hop, smooth
        self.register_buffer("window", torch.hann_window(n_fft))
        top = 2595 * torch.log10(torch.tensor(1 + rate / 2 / 700))
        pts = 700 * (10 ** (torch.linspace(0, 1, mels + 2) * top / 2595) - 1)
        freq = torch.linspace(0, rate / 2, n_fft // 2 + 1)
        up = (freq[:, None] - pts[:-2]) / (pts[1:-1] - pts[:-2])
        down = (pts[2:] - freq[:, None]) / (pts[2:] - pts[1:-1])
        self.register_buffer("bank", torch.minimum(up, down).clamp_min(0) * 2 / (pts[2:] - pts[:-2]))
        n = torch.arange(mels, dtype=torch.float32)
        dct = torch.cos(torch.pi / mels * (n + 0.5) * torch.arange(coeffs, dtype=torch.float32)[:, None]) * (2 / mels) ** 0.5
        dct[0] /= 2 ** 0.5
        self.register_buffer("dct", dct)
        self.centre = nn.Parameter(torch.tensor([0.15, 0.4, 0.75]) * torch.pi * (1 + 0.05 * torch.randn(3)))
        self.q = nn.Parameter(torch.rand(3) + 0.6)
        self.gain = nn.Parameter(6 * torch.randn(3))
        self.alpha = nn.Parameter(torch.full((mels,), 0.9))
        self.root = nn.Parameter(torch.full((mels,), 2.0))

    def equalise(self, x):
        a = 10 ** (self.gain / 40)
        al = torch.sin(self.centre) / (2 * self.q)
        c = -2 * torch.cos(self.centre)
        num = torch.stack((1 + al * a, c, 1 - al * a), 1)
        den = torch.stack((1 + al / a, c, 1 - al / a), 1)
        n = 2 * x.shape[-1]
        resp = (torch.fft.rfft(num, n=n) / torch.fft.rfft(den, n=n)).prod(0)
        return torch.fft.irfft(torch.fft.rfft(x, n=n) * resp, n=n)[..., : x.shape[-1]]

    def forward(self, pcm):
        x = pcm.to(torch.float32) / 32768
        x = torch.cat((x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]), 1)
        x = self.equalise(x)
        spec = torch.stft(x, self.n_fft, self.hop, window=self.window, center=True, pad_mode="reflect", return_complex=True)
        power = spec.real.square() + spec.imag.square()
        mel = power.transpose(1, 2) @ self.bank
        m = mel[:, 0]
        track = [m]
        for i in range(1, mel.shape[1]):
            m = (1 - self.smooth) * m + self.smooth * mel[:, i]
            track.append(m)
        m = torch.stack(track, 1)
        pcen = (mel * (m + 1e-6).pow(-self.alpha) + 2).pow(1 / self.root) - 2 ** (1 / self.root)
        logmel = 10 * torch.log10(mel.clamp_min(1e-10))
        logmel = torch.maximum(logmel, logmel.amax((1, 2), keepdim=True) - 80)
        mfcc = logmel @ self.dct.T
        p = F.pad(mfcc.transpose(1, 2), (2, 2), mode="replicate").transpose(1, 2)
        delta = (2 * (p[:, 4:] - p[:, :-4]) + p[:, 3:-1] - p[:, 1:-3]) / 10
        feats = torch.cat((mfcc, delta), -1)
        feats = (feats - feats.mean(1, keepdim=True)) / (feats.std(1, keepdim=True) + 1e-5)
        flat = torch.exp((power + 1e-8).log().mean(1)) / (power.mean(1) + 1e-8)
        return pcen, feats, flat


def get_inputs():
    return [torch.randint(-12000, 12000, (3, 8009), dtype=torch.int16)]


def get_init_inputs():
    return [16000, 400, 160, 37, 13, 0.04]
