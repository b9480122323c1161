import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Mel to linear by a learned non-negative projection, then three fast Griffin-Lim iterations."""

    def __init__(self, n_mels=20, n_fft=96, hop=24, n_iter=3, momentum=0.99):
        super().__init__()
        self.n_fft = n_fft
        self.hop = hop
        self.n_iter = n_iter
        self.momentum = momentum / (1 + momentum)
        self.inv_mel = nn.Linear(n_mels, n_fft // 2 + 1)
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)

    def forward(self, mel, phase0):
        # mel (B, n_mels, T); phase0 (B, F, T)
        mag = F.softplus(self.inv_mel(mel.transpose(1, 2))).transpose(1, 2)
        length = (mel.shape[-1] - 1) * self.hop
        angles = torch.polar(torch.ones_like(phase0), phase0)
        tprev = torch.zeros((), dtype=mag.dtype, device=mag.device)
        for _ in range(self.n_iter):
            inverse = torch.istft(mag * angles, n_fft=self.n_fft, hop_length=self.hop, win_length=self.n_fft,
                                  window=self.window, length=length)
            rebuilt = torch.stft(inverse, n_fft=self.n_fft, hop_length=self.hop, win_length=self.n_fft,
                                 window=self.window, center=True, pad_mode="reflect", normalized=False,
                                 onesided=True, return_complex=True)
            angles = rebuilt
            if self.momentum:
                angles = angles - tprev * self.momentum
            angles = angles.div(angles.abs().add(1e-8))
            tprev = rebuilt
        wav = torch.istft(mag * angles, n_fft=self.n_fft, hop_length=self.hop, win_length=self.n_fft,
                          window=self.window, length=length)
        err = (rebuilt.abs() - mag).pow(2).sum((1, 2)).sqrt() / mag.pow(2).sum((1, 2)).sqrt()
        return wav, err


def get_inputs():
    return [torch.randn(2, 20, 61), 6.2831853 * torch.rand(2, 49, 61)]


def get_init_inputs():
    return [20, 96, 24, 3, 0.99]
