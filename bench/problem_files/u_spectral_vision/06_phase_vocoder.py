import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def phase_vocoder(spec, rate, phase_advance):
    # spec: (..., freq, time) complex
    shape = spec.size()
    spec = spec.reshape([-1] + list(shape[-2:]))
    time_steps = torch.arange(0, spec.size(-1), rate, device=spec.device, dtype=phase_advance.dtype)
    alphas = time_steps % 1.0
    phase_0 = spec[..., :1].angle()
    spec = F.pad(spec, [0, 2])

    spec_0 = spec.index_select(-1, time_steps.long())
    spec_1 = spec.index_select(-1, (time_steps + 1).long())
    angle_0, angle_1 = spec_0.angle(), spec_1.angle()
    norm_0, norm_1 = spec_0.abs(), spec_1.abs()

    phase = angle_1 - angle_0 - phase_advance
    phase = phase - 2 * math.pi * torch.round(phase / (2 * math.pi))
    phase = phase + phase_advance
    phase = torch.cat([phase_0, phase[..., :-1]], dim=-1)
    phase_acc = torch.cumsum(phase, -1)

    mag = alphas * norm_1 + (1 - alphas) * norm_0
    out = torch.polar(mag, phase_acc)
    return out.reshape(list(shape[:-2]) + list(out.shape[1:]))


class Model(nn.Module):
    """STFT, learned band gains, phase vocoder time stretching, inverse STFT."""

    def __init__(self, n_fft=128, hop=32, rate=1.3):
        super().__init__()
        self.n_fft = n_fft
        self.hop = hop
        self.rate = rate
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("phase_advance", torch.linspace(0, math.pi * hop, n_fft // 2 + 1)[..., None])
        self.log_gain = nn.Parameter(0.1 * torch.randn(n_fft // 2 + 1, 1))

    def forward(self, wav):
        b, c, n = wav.shape
        x = torch.stft(wav.reshape(b * c, n), self.n_fft, self.hop, window=self.window, center=True,
                       return_complex=True)
        x = x * self.log_gain.exp()
        y = phase_vocoder(x, self.rate, self.phase_advance)
        length = int(round(n / self.rate))
        out = torch.istft(y, self.n_fft, self.hop, window=self.window, length=length)
        return out.view(b, c, -1)


def get_inputs():
    return [torch.randn(2, 2, 3000)]


def get_init_inputs():
    return [128, 32, 1.3]
