import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def mel_bank(sr, n_fft, n_mels, fmin=40.0):
    to_mel = lambda f: 2595.0 * math.log10(1 + f / 700.0)
    pts = torch.linspace(to_mel(fmin), to_mel(sr / 2), n_mels + 2)
    hz = 700.0 * (10 ** (pts / 2595.0) - 1)
    freqs = torch.linspace(0, sr / 2, n_fft // 2 + 1)
    up = (freqs[:, None] - hz[None, :-2]) / (hz[1:-1] - hz[:-2])
    down = (hz[None, 2:] - freqs[:, None]) / (hz[2:] - hz[1:-1])
    return torch.clamp(torch.minimum(up, down), min=0)


class RunningCMVN(nn.Module):
    """Welford merge of batch statistics in float64; the buffers are rebound, not written in place."""

    def __init__(self, dim):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(dim, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                flat = x.flatten(0, 1).double()
                n = flat.shape[0]
                mu = flat.mean(0)
                m2 = (flat - mu).square().sum(0)
                tot = self.count + n
                delta = mu - self.mean
                self.m2 = self.m2 + m2 + delta.square() * self.count * n / tot
                self.mean = self.mean + delta * (n / tot)
                self.count = tot
        std = (self.m2 / self.count.clamp_min(1)).sqrt().clamp_min(1e-4)
        return (x - self.mean.to(x.dtype)) / std.to(x.dtype)


class PCEN(nn.Module):
    def __init__(self, n_mels):
        super().__init__()
        self.log_s = nn.Parameter(torch.full((n_mels,), math.log(0.04)))
        self.alpha = nn.Parameter(torch.full((n_mels,), 0.96))
        self.delta = nn.Parameter(torch.full((n_mels,), 2.0))
        self.root = nn.Parameter(torch.full((n_mels,), 0.5))

    def forward(self, mel):
        s = self.log_s.exp()
        m = mel[:, 0]
        smooth = [m]
        for frame in mel[:, 1:].unbind(1):
            m = (1 - s) * m + s * frame
            smooth.append(m)
        M = torch.stack(smooth, 1)
        gain = (M + 1e-6) ** (-self.alpha)
        r = self.root.clamp(0.1, 1.0)
        return (mel * gain + self.delta) ** r - self.delta ** r


def deltas(x, width=2):
    norm = 2 * sum(i * i for i in range(1, width + 1))
    padded = F.pad(x.mT, (width, width), mode="replicate").mT
    T = x.shape[1]
    acc = None
    for i in range(1, width + 1):
        term = i * (padded[:, width + i: width + i + T] - padded[:, width - i: width - i + T])
        acc = term if acc is None else acc + term
    return acc / norm


class Model(nn.Module):
    """Audio front end: pre-emphasis, STFT, mel bank, PCEN loop, running CMVN, conv classifier."""

    def __init__(self, sr, n_fft, hop, n_mels, classes):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.register_buffer("bank", mel_bank(sr, n_fft, n_mels))
        self.bank_scale = nn.Parameter(torch.zeros(n_mels))
        self.preemph = nn.Parameter(torch.tensor(0.97))
        self.pcen, self.cmvn = PCEN(n_mels), RunningCMVN(2 * n_mels)
        self.conv = nn.Conv1d(2 * n_mels, 64, 5, padding=2, groups=2)
        self.att, self.out = nn.Conv1d(64, 1, 1), nn.Linear(128, classes)

    def forward(self, wav):
        wav = wav - wav.mean(-1, keepdim=True)
        emph = wav.clone()
        emph[:, 1:] -= self.preemph * wav[:, :-1]
        spec = torch.stft(emph, self.n_fft, self.hop, window=self.window, center=True,
                          pad_mode="reflect", return_complex=True)
        power = torch.view_as_real(spec).square().sum(-1)
        mel = power.mT @ (self.bank * self.bank_scale.exp())
        feat = self.pcen(mel)
        feat = self.cmvn(torch.cat((feat, deltas(feat)), -1))
        h = F.hardswish(self.conv(feat.mT))
        a = self.att(h).softmax(-1)
        mu = (a * h).sum(-1)
        sd = ((a * h.square()).sum(-1) - mu.square()).clamp_min(1e-5).sqrt()
        n = power.shape[1]
        centroid = (power * torch.arange(n, device=wav.device)[:, None]).sum(1) / (power.sum(1) + 1e-6)
        return {"logits": self.out(torch.cat((mu, sd), -1)), "feat": feat,
                "attn": a.squeeze(1), "centroid": centroid, "frames_seen": self.cmvn.count}


def get_inputs():
    return [torch.randn(8, 8000)]


def get_init_inputs():
    return [8000, 256, 128, 32, 10]
