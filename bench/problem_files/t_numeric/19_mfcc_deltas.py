import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


class Model(nn.Module):
    """MFCC front end: pre-emphasis, STFT power, mel filterbank, log, DCT-II,
    liftering, deltas by regression, and cepstral mean/variance normalisation."""

    def __init__(self, sr, n_fft, hop, n_mels, n_ceps, lifter):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        pts = torch.linspace(hz_to_mel(40.0), hz_to_mel(sr / 2), n_mels + 2)
        hz = 700.0 * (10.0 ** (pts / 2595.0) - 1.0)
        freqs = torch.linspace(0, sr / 2, n_fft // 2 + 1)
        up = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
        self.register_buffer("fb", torch.minimum(up, down).clamp(min=0))
        n = torch.arange(n_mels, dtype=torch.float32)
        k = torch.arange(n_ceps, dtype=torch.float32)[:, None]
        dct = torch.cos(math.pi / n_mels * (n + 0.5) * k) * math.sqrt(2.0 / n_mels)
        dct[0] *= 1 / math.sqrt(2.0)
        lift = 1.0 + 0.5 * lifter * torch.sin(math.pi * torch.arange(n_ceps) / lifter)
        self.register_buffer("dct", dct * lift[:, None])
        self.register_buffer("win", torch.hann_window(n_fft))
        self.register_buffer("reg", torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]) / 10.0)

    def delta(self, c):
        p = F.pad(c, (2, 2), mode="replicate")
        return (p.unfold(-1, 5, 1) * self.reg).sum(-1)

    def forward(self, wav):
        wav = torch.cat((wav[:, :1], wav[:, 1:] - 0.97 * wav[:, :-1]), dim=1)
        S = torch.stft(wav, self.n_fft, self.hop, window=self.win, center=True,
                       pad_mode="reflect", return_complex=True)
        power = S.real ** 2 + S.imag ** 2
        logmel = torch.log(torch.matmul(self.fb, power) + 1e-4)
        cep = torch.matmul(self.dct, logmel)
        d1 = self.delta(cep)
        d2 = self.delta(d1)
        feat = torch.cat((cep, d1, d2), dim=1)
        mu = feat.mean(-1, keepdim=True)
        sd = feat.std(-1, keepdim=True)
        return ((feat - mu) / (sd + 1e-3)).transpose(1, 2)


def get_inputs():
    return [0.3 * torch.randn(3, 12345)]


def get_init_inputs():
    return [16000, 400, 160, 40, 13, 22.0]
