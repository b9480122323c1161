import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


def get_extra_padding_for_conv1d(x, kernel_size, stride, padding_total=0):
    length = x.shape[-1]
    n_frames = (length - kernel_size + padding_total) / stride + 1
    ideal_length = (math.ceil(n_frames) - 1) * stride + (kernel_size - padding_total)
    return ideal_length - length


def pad1d(x, paddings, mode="zero", value=0.0):
    length = x.shape[-1]
    padding_left, padding_right = paddings
    if mode == "reflect":
        max_pad = max(padding_left, padding_right)
        extra_pad = 0
        if length <= max_pad:
            extra_pad = max_pad - length + 1
            x = F.pad(x, (0, extra_pad))
        padded = F.pad(x, paddings, mode, value)
        end = padded.shape[-1] - extra_pad
        return padded[..., :end]
    return F.pad(x, paddings, "constant", value)


class SConv1d(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, dilation=1, causal=True):
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(in_channels, out_channels, kernel_size, stride, dilation=dilation))
        self.causal = causal
        self.kernel_size, self.stride, self.dilation = kernel_size, stride, dilation

    def forward(self, x):
        kernel_size = (self.kernel_size - 1) * self.dilation + 1
        padding_total = kernel_size - self.stride
        extra_padding = get_extra_padding_for_conv1d(x, kernel_size, self.stride, padding_total)
        if self.causal:
            x = pad1d(x, (padding_total, extra_padding), mode="reflect")
        else:
            padding_right = padding_total // 2
            x = pad1d(x, (padding_total - padding_right, padding_right + extra_padding), mode="reflect")
        return self.conv(x)


class SConvTranspose1d(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super().__init__()
        self.convtr = weight_norm(nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride))
        self.padding_total = kernel_size - stride

    def forward(self, x):
        y = self.convtr(x)
        padding_right = math.ceil(self.padding_total * 1.0)
        padding_left = self.padding_total - padding_right
        return y[..., padding_left: y.shape[-1] - padding_right]


class SLSTM(nn.Module):
    def __init__(self, dimension, num_layers=2, skip=True):
        super().__init__()
        self.skip = skip
        self.lstm = nn.LSTM(dimension, dimension, num_layers)

    def forward(self, x):
        x = x.permute(2, 0, 1)
        y, _ = self.lstm(x)
        if self.skip:
            y = y + x
        return y.permute(1, 2, 0)


class SEANetResnetBlock(nn.Module):
    def __init__(self, dim, kernel_sizes=(3, 1), dilations=(1, 1), compress=2):
        super().__init__()
        hidden = dim // compress
        block = []
        for i, (kernel_size, dilation) in enumerate(zip(kernel_sizes, dilations)):
            in_chs = dim if i == 0 else hidden
            out_chs = dim if i == len(kernel_sizes) - 1 else hidden
            block += [nn.ELU(alpha=1.0), SConv1d(in_chs, out_chs, kernel_size, dilation=dilation)]
        self.block = nn.Sequential(*block)
        self.shortcut = SConv1d(dim, dim, kernel_size=1)

    def forward(self, x):
        return self.shortcut(x) + self.block(x)


class SEANetEncoder(nn.Module):
    def __init__(self, channels=1, dimension=128, n_filters=32, ratios=(8, 5, 4, 2), lstm=2):
        super().__init__()
        mult = 1
        model = [SConv1d(channels, mult * n_filters, 7)]
        for ratio in reversed(ratios):
            model += [SEANetResnetBlock(mult * n_filters)]
            model += [nn.ELU(), SConv1d(mult * n_filters, mult * n_filters * 2, kernel_size=ratio * 2, stride=ratio)]
            mult *= 2
        model += [SLSTM(mult * n_filters, num_layers=lstm)]
        model += [nn.ELU(), SConv1d(mult * n_filters, dimension, 7)]
        self.model = nn.Sequential(*model)

    def forward(self, x):
        return self.model(x)


class SEANetDecoder(nn.Module):
    def __init__(self, channels=1, dimension=128, n_filters=32, ratios=(8, 5, 4, 2), lstm=2):
        super().__init__()
        mult = int(2 ** len(ratios))
        model = [SConv1d(dimension, mult * n_filters, 7), SLSTM(mult * n_filters, num_layers=lstm)]
        for ratio in ratios:
            model += [nn.ELU(), SConvTranspose1d(mult * n_filters, mult * n_filters // 2, kernel_size=ratio * 2,
                                                 stride=ratio)]
            model += [SEANetResnetBlock(mult * n_filters // 2)]
            mult //= 2
        model += [nn.ELU(), SConv1d(n_filters, channels, 7)]
        self.model = nn.Sequential(*model)

    def forward(self, z):
        return self.model(z)


class MultiScaleSpectralLoss(nn.Module):
    def __init__(self, n_ffts=(256, 512, 1024), eps=1e-5):
        super().__init__()
        self.n_ffts = n_ffts
        self.eps = eps
        for n in n_ffts:
            self.register_buffer(f"window_{n}", torch.hann_window(n))

    def spec(self, x, n):
        s = torch.stft(x.squeeze(1), n, hop_length=n // 4, win_length=n, window=getattr(self, f"window_{n}"),
                       center=True, normalized=True, return_complex=True)
        return s.real.pow(2) + s.imag.pow(2)

    def forward(self, x, y):
        loss = 0.0
        for n in self.n_ffts:
            sx = torch.sqrt(self.spec(x, n) + self.eps)
            sy = torch.sqrt(self.spec(y, n) + self.eps)
            loss = loss + F.l1_loss(sx, sy) + torch.sqrt(F.mse_loss(torch.log(sx), torch.log(sy)) + self.eps)
        return loss / len(self.n_ffts)


class Model(nn.Module):
    """EnCodec's SEANet autoencoder (causal, weight-normed, LSTM) with loudness normalisation and spectral loss."""

    def __init__(self, n_filters, dimension, ratios, lstm):
        super().__init__()
        self.encoder = SEANetEncoder(1, dimension, n_filters, ratios, lstm)
        self.decoder = SEANetDecoder(1, dimension, n_filters, ratios, lstm)
        self.loss = MultiScaleSpectralLoss()

    def forward(self, x):
        length = x.shape[-1]
        mono = x.mean(dim=1, keepdim=True)
        volume = mono.pow(2).mean(dim=2, keepdim=True).sqrt()
        scale = 1e-8 + volume
        x = x / scale
        emb = self.encoder(x)
        y = self.decoder(emb)[..., :length]
        loss = 0.1 * F.l1_loss(y, x) + self.loss(y, x)
        return loss, y * scale, emb


def get_inputs():
    return [0.1 * torch.randn(16, 1, 24000)]


def get_init_inputs():
    return [32, 128, [8, 5, 4, 2], 2]
