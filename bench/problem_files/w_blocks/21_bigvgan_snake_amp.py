import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


def kaiser_sinc_filter1d(cutoff, half_width, kernel_size):
    even = kernel_size % 2 == 0
    half = kernel_size // 2
    A = 2.285 * (half - 1) * math.pi * (4 * half_width) + 7.95
    beta = 0.1102 * (A - 8.7) if A > 50.0 else (0.5842 * (A - 21) ** 0.4 + 0.07886 * (A - 21.0) if A >= 21.0 else 0.0)
    window = torch.kaiser_window(kernel_size, beta=beta, periodic=False)
    time = torch.arange(-half, half) + 0.5 if even else torch.arange(kernel_size) - half
    filt = 2 * cutoff * window * torch.sinc(2 * cutoff * time)
    return (filt / filt.sum()).view(1, 1, kernel_size)


class SnakeBeta(nn.Module):
    """x + sin^2(a x) / b with log-scale parameters per channel."""

    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        alpha = torch.exp(self.alpha.unsqueeze(0).unsqueeze(-1))
        beta = torch.exp(self.beta.unsqueeze(0).unsqueeze(-1))
        return x + (1.0 / (beta + 1e-9)) * torch.pow(torch.sin(x * alpha), 2)


class Activation1d(nn.Module):
    """Anti-aliased nonlinearity: upsample by 2, activate, low-pass and downsample by 2."""

    def __init__(self, channels, ratio=2, k=12):
        super().__init__()
        self.act = SnakeBeta(channels)
        self.ratio, self.k = ratio, k
        self.pad = k // ratio - 1
        self.pad_left = self.pad * ratio + (k - ratio) // 2
        self.pad_right = self.pad * ratio + (k - ratio + 1) // 2
        self.register_buffer("up_filter", kaiser_sinc_filter1d(0.5 / ratio, 0.6 / ratio, k))
        self.register_buffer("down_filter", kaiser_sinc_filter1d(0.5 / ratio, 0.6 / ratio, k))

    def forward(self, x):
        _, C, _ = x.shape
        x = F.pad(x, (self.pad, self.pad), mode="replicate")
        x = self.ratio * F.conv_transpose1d(x, self.up_filter.expand(C, -1, -1), stride=self.ratio, groups=C)
        x = x[..., self.pad_left:-self.pad_right]
        x = self.act(x)
        x = F.pad(x, (self.k // 2 - 1, self.k // 2), mode="replicate")
        return F.conv1d(x, self.down_filter.expand(C, -1, -1), stride=self.ratio, groups=C)


class AMPBlock(nn.Module):
    def __init__(self, channels, kernel_size, dilations):
        super().__init__()
        conv = lambda d: weight_norm(nn.Conv1d(channels, channels, kernel_size, dilation=d, padding=(kernel_size * d - d) // 2))
        self.convs1 = nn.ModuleList([conv(d) for d in dilations])
        self.convs2 = nn.ModuleList([conv(1) for _ in dilations])
        self.acts = nn.ModuleList([Activation1d(channels) for _ in range(2 * len(dilations))])

    def forward(self, x):
        acts1, acts2 = self.acts[::2], self.acts[1::2]
        for c1, c2, a1, a2 in zip(self.convs1, self.convs2, acts1, acts2):
            xt = c2(a2(c1(a1(x))))
            x = xt + x
        return x


class Model(nn.Module):
    """The last upsampling stage of a vocoder generator and its waveform output."""

    def __init__(self, in_ch, up_rate, up_kernel, kernels, dilations):
        super().__init__()
        ch = in_ch // 2
        self.up = weight_norm(nn.ConvTranspose1d(in_ch, ch, up_kernel, up_rate, padding=(up_kernel - up_rate) // 2))
        self.resblocks = nn.ModuleList([AMPBlock(ch, k, d) for k, d in zip(kernels, dilations)])
        self.activation_post = Activation1d(ch)
        self.conv_post = weight_norm(nn.Conv1d(ch, 1, 7, 1, padding=3, bias=False))

    def forward(self, x):
        x = self.up(x)
        xs = None
        for blk in self.resblocks:
            xs = blk(x) if xs is None else xs + blk(x)
        x = xs / len(self.resblocks)
        x = self.activation_post(x)
        x = self.conv_post(x)
        return torch.clamp(x, min=-1.0, max=1.0)


def get_inputs():
    return [torch.randn(2, 96, 16384)]


def get_init_inputs():
    return [96, 2, 4, [3, 7], [[1, 3, 5], [1, 3, 5]]]
