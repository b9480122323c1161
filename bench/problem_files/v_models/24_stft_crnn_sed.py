import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def mel_matrix(n_fft, n_mels, sr, fmin=30.0):
    def to_mel(f):
        return 2595.0 * math.log10(1.0 + f / 700.0)

    mels = torch.linspace(to_mel(fmin), to_mel(sr / 2), n_mels + 2)
    hz = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    freqs = torch.linspace(0, sr / 2, n_fft // 2 + 1)
    slope = hz[None, :] - freqs[:, None]
    diff = hz[1:] - hz[:-1]
    return torch.clamp(torch.minimum(-slope[:, :-2] / diff[:-1], slope[:, 2:] / diff[1:]), min=0)


class PCEN(nn.Module):
    """Per-channel energy normalisation: a learned one-pole smoother, unrolled over the frames."""

    def __init__(self, n, s=0.1):
        super().__init__()
        self.log_s = nn.Parameter(torch.full((n,), math.log(s)))
        self.alpha = nn.Parameter(torch.full((n,), 0.9))
        self.delta = nn.Parameter(torch.full((n,), 2.0))
        self.r = nn.Parameter(torch.full((n,), 0.5))

    def forward(self, x):
        s = self.log_s.exp().clamp(max=1)
        frames = x.unbind(-1)
        m = [frames[0]]
        for f in frames[1:]:
            m.append((1 - s) * m[-1] + s * f)
        m = torch.stack(m, -1)
        col = (slice(None), None)
        gain = (1e-5 + m) ** -self.alpha[col].clamp(max=1)
        r = self.r[col].clamp(0.1, 1)
        return (x * gain + self.delta[col].relu()) ** r - self.delta[col].relu() ** r


class GLUConv(nn.Module):
    def __init__(self, i, o, pool):
        super().__init__()
        self.conv = nn.Conv2d(i, 2 * o, 3, padding=1)
        self.bn = nn.BatchNorm2d(2 * o, eps=1e-3)
        self.pool = nn.LPPool2d(2, pool, ceil_mode=False)

    def forward(self, x):
        return self.pool(F.glu(self.bn(self.conv(x)), dim=1)) / math.sqrt(self.pool.kernel_size[0] * self.pool.kernel_size[1])


class Model(nn.Module):
    """Sound event detection: waveform, STFT, mel, PCEN, gated convolutions, biGRU, class-wise attention pooling."""

    def __init__(self, sr, n_fft, hop, n_mels, width, hidden, classes):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("mel", mel_matrix(n_fft, n_mels, sr))
        self.emphasis = nn.Parameter(torch.tensor([[[-0.97, 1.0]]]))
        self.pcen = PCEN(n_mels)
        self.bn0 = nn.BatchNorm2d(n_mels)
        self.blocks = nn.Sequential(GLUConv(1, width, (2, 2)), GLUConv(width, 2 * width, (1, 3)), GLUConv(2 * width, 2 * width, (1, 2)))
        self.gru = nn.GRU(2 * width * (n_mels // 12), hidden, batch_first=True, bidirectional=True)
        self.strong, self.weak = nn.Linear(2 * hidden, classes), nn.Linear(2 * hidden, classes)

    def forward(self, wave, tags):
        x = F.conv1d(F.pad(wave.unsqueeze(1), (1, 0), mode="replicate"), self.emphasis).squeeze(1)
        spec = torch.stft(x, self.n_fft, self.hop, window=self.window, center=True, pad_mode="reflect", return_complex=True)
        power = torch.view_as_real(spec).pow(2).sum(-1)
        mel = torch.einsum("bft,fm->bmt", power, self.mel)
        x = self.pcen(mel + 1e-6)
        x = self.bn0(x.unsqueeze(-1)).squeeze(-1).transpose(1, 2).unsqueeze(1)
        x = self.blocks(x)
        x = x.permute(0, 2, 1, 3).flatten(2)
        x, _ = self.gru(x)
        strong = torch.sigmoid(self.strong(x))
        att = torch.softmax(self.weak(x).clamp(-10, 10), dim=1)
        clip = (att * strong).sum(1)
        frames = F.interpolate(strong.transpose(1, 2), scale_factor=2.0, mode="linear", align_corners=False)
        loss = F.binary_cross_entropy(clip.clamp(1e-6, 1 - 1e-6), tags)
        smooth = (strong[:, 1:] - strong[:, :-1]).abs().mean()
        return {"clip": clip, "frames": frames, "loss": loss + 0.1 * smooth}


def get_inputs():
    return [0.3 * torch.randn(2, 9000), (torch.rand(2, 9) < 0.3).float()]


def get_init_inputs():
    return [16000, 400, 150, 40, 14, 30, 9]
