import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def melscale_fbanks(n_freqs, f_min, f_max, n_mels, sample_rate):
    all_freqs = torch.linspace(0, sample_rate // 2, n_freqs)
    m_pts = torch.linspace(hz_to_mel(f_min), hz_to_mel(f_max), n_mels + 2)
    f_pts = 700.0 * (10 ** (m_pts / 2595.0) - 1.0)
    f_diff = f_pts[1:] - f_pts[:-1]
    slopes = f_pts.unsqueeze(0) - all_freqs.unsqueeze(1)
    down_slopes = (-1.0 * slopes[:, :-2]) / f_diff[:-1]
    up_slopes = slopes[:, 2:] / f_diff[1:]
    return torch.max(torch.zeros(1), torch.min(down_slopes, up_slopes))


def create_dct(n_mfcc, n_mels):
    n = torch.arange(float(n_mels))
    k = torch.arange(float(n_mfcc)).unsqueeze(1)
    dct = torch.cos(math.pi / float(n_mels) * (n + 0.5) * k)
    dct[0] *= 1.0 / math.sqrt(2.0)
    dct *= math.sqrt(2.0 / float(n_mels))
    return dct.t()


class MFCC(nn.Module):
    def __init__(self, sample_rate, n_fft, win_length, hop_length, n_mels, n_mfcc):
        super().__init__()
        self.n_fft, self.win_length, self.hop_length = n_fft, win_length, hop_length
        self.register_buffer("window", torch.hann_window(win_length))
        self.register_buffer("fb", melscale_fbanks(n_fft // 2 + 1, 20.0, sample_rate / 2, n_mels, sample_rate))
        self.register_buffer("dct_mat", create_dct(n_mfcc, n_mels))

    def forward(self, waveform):
        spec = torch.stft(waveform, self.n_fft, self.hop_length, self.win_length, self.window, center=True,
                          pad_mode="reflect", normalized=False, onesided=True, return_complex=True)
        power = spec.abs().pow(2.0)
        mel = torch.matmul(power.transpose(-1, -2), self.fb).transpose(-1, -2)
        db = 10.0 * torch.log10(torch.clamp(mel, min=1e-10))
        db = torch.max(db, (db.amax(dim=(-2, -1)) - 80.0).view(-1, 1, 1))
        return torch.matmul(db.transpose(-1, -2), self.dct_mat).transpose(-1, -2)


class DSBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        x = F.relu(self.bn1(self.depthwise(x)))
        return F.relu(self.bn2(self.pointwise(x)))


class Model(nn.Module):
    """Keyword spotting: MFCC front-end in the graph, depthwise separable CNN (DS-CNN), label smoothing loss."""

    def __init__(self, sample_rate, n_mels, n_mfcc, channels, n_blocks, n_classes):
        super().__init__()
        self.mfcc = MFCC(sample_rate, 512, 480, 320, n_mels, n_mfcc)
        self.input_norm = nn.BatchNorm1d(n_mfcc)
        self.conv1 = nn.Conv2d(1, channels, (10, 4), stride=(2, 2), padding=(5, 1), bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(*[DSBlock(channels) for _ in range(n_blocks)])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, n_classes)

    def forward(self, waveform, labels):
        # pre-emphasis
        x = torch.cat([waveform[:, :1], waveform[:, 1:] - 0.97 * waveform[:, :-1]], dim=1)
        x = self.input_norm(self.mfcc(x))
        x = x.transpose(1, 2).unsqueeze(1)
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.blocks(x)
        x = self.pool(x).flatten(1)
        logits = self.fc(x)
        return F.cross_entropy(logits, labels, label_smoothing=0.1), logits


def get_inputs():
    return [0.3 * torch.randn(32, 16000), torch.randint(0, 35, (32,))]


def get_init_inputs():
    return [16000, 40, 10, 172, 4, 35]
