import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Pre-emphasis, STFT by strided conv1d, mel, PCEN-like compression by a short FIR, deltas, CMVN."""

    def __init__(self, n_fft, hop, n_mels, fir):
        super().__init__()
        self.n_fft, self.hop, self.fir = n_fft, hop, fir
        nb = n_fft // 2 + 1
        t = torch.arange(n_fft, dtype=torch.float64)
        f = torch.arange(nb, dtype=torch.float64).unsqueeze(1)
        win = 0.5 - 0.5 * torch.cos(2 * torch.pi * t / n_fft)
        ang = 2 * torch.pi * f * t / n_fft
        k = torch.cat([torch.cos(ang) * win, -torch.sin(ang) * win], 0).float().unsqueeze(1)
        self.register_buffer("basis", k)
        c = torch.linspace(0, 3.7136, n_mels + 2)
        c = torch.expm1(c) / 40.0 * (nb - 1)
        fr = torch.arange(nb, dtype=torch.float32).unsqueeze(1)
        up = (fr - c[:-2]) / (c[1:-1] - c[:-2] + 0.3)
        dn = (c[2:] - fr) / (c[2:] - c[1:-1] + 0.3)
        self.register_buffer("fb", torch.minimum(up, dn).clamp(min=0))
        self.pre = nn.Parameter(torch.tensor(0.97))
        self.s = nn.Parameter(torch.tensor(-2.0))
        self.alpha = nn.Parameter(torch.full((n_mels, 1), 0.8))

    def forward(self, wav):
        x = torch.cat([wav[:, :1], wav[:, 1:] - self.pre * wav[:, :-1]], 1)
        x = F.pad(x.unsqueeze(1), (self.n_fft // 2, self.n_fft // 2), mode="reflect")
        z = F.conv1d(x, self.basis, stride=self.hop)
        re, im = z.chunk(2, dim=1)
        mel = torch.matmul((re * re + im * im).transpose(1, 2), self.fb).transpose(1, 2)
        s = torch.sigmoid(self.s)
        ker = s * (1 - s) ** torch.arange(self.fir - 1, -1, -1, device=wav.device, dtype=wav.dtype)
        ema = F.conv1d(F.pad(mel, (self.fir - 1, 0), mode="replicate"),
                       ker.view(1, 1, -1).expand(mel.shape[1], 1, -1), groups=mel.shape[1])
        y = (mel / (ema + 1e-4) ** self.alpha + 2.0).sqrt() - 2.0 ** 0.5
        p = F.pad(y, (2, 2), mode="replicate")
        d = (2 * (p[..., 4:] - p[..., :-4]) + p[..., 3:-1] - p[..., 1:-3]) / 10
        o = torch.cat([y, d], 1)
        return (o - o.mean(-1, keepdim=True)) / (o.std(-1, keepdim=True) + 1e-4)


def get_inputs():
    return [torch.randn(48, 80000)]


def get_init_inputs():
    return [400, 160, 80, 15]
