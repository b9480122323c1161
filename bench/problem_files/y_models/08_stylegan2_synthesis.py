import math

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 4
size = 256
style_dim = 512
n_mlp = 6
channels = {4: 512, 8: 512, 16: 512, 32: 512, 64: 256, 128: 128, 256: 64}


def make_kernel(k):
    k = torch.tensor(k, dtype=torch.float32)
    if k.ndim == 1:
        k = k[None, :] * k[:, None]
    k /= k.sum()
    return k


def upfirdn2d(x, kernel, up=1, pad=(0, 0)):
    b, c, h, w = x.shape
    x = x.reshape(b * c, 1, h, 1, w, 1)
    x = F.pad(x, [0, up - 1, 0, 0, 0, up - 1])
    x = x.view(b * c, 1, h * up, w * up)
    x = F.pad(x, [pad[0], pad[1], pad[0], pad[1]])
    x = F.conv2d(x, torch.flip(kernel, [0, 1])[None, None].to(x.dtype))
    return x.view(b, c, x.shape[-2], x.shape[-1])


class EqualLinear(nn.Module):
    def __init__(self, in_dim, out_dim, bias_init=0.0, lr_mul=1.0, activation=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_dim, in_dim).div_(lr_mul))
        self.bias = nn.Parameter(torch.zeros(out_dim).fill_(bias_init))
        self.activation = activation
        self.scale, self.lr_mul = (1 / math.sqrt(in_dim)) * lr_mul, lr_mul

    def forward(self, x):
        out = F.linear(x, self.weight * self.scale, self.bias * self.lr_mul)
        if self.activation:
            out = F.leaky_relu(out, 0.2) * math.sqrt(2)
        return out


class ModulatedConv2d(nn.Module):
    def __init__(self, in_channel, out_channel, kernel_size, style_dim, demodulate=True, upsample=False):
        super().__init__()
        self.eps = 1e-8
        self.kernel_size, self.in_channel, self.out_channel = kernel_size, in_channel, out_channel
        self.upsample, self.demodulate = upsample, demodulate
        if upsample:
            self.register_buffer("blur", make_kernel([1, 3, 3, 1]) * 4)
        self.scale = 1 / math.sqrt(in_channel * kernel_size**2)
        self.padding = kernel_size // 2
        self.weight = nn.Parameter(torch.randn(1, out_channel, in_channel, kernel_size, kernel_size))
        self.modulation = EqualLinear(style_dim, in_channel, bias_init=1.0)

    def forward(self, x, style):
        batch, in_channel, height, width = x.shape
        style = self.modulation(style).view(batch, 1, in_channel, 1, 1)
        weight = self.scale * self.weight * style
        if self.demodulate:
            demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + self.eps)
            weight = weight * demod.view(batch, self.out_channel, 1, 1, 1)
        weight = weight.view(batch * self.out_channel, in_channel, self.kernel_size, self.kernel_size)
        x = x.reshape(1, batch * in_channel, height, width)
        if self.upsample:
            weight = weight.view(batch, self.out_channel, in_channel, self.kernel_size, self.kernel_size)
            weight = weight.transpose(1, 2).flatten(0, 1)
            out = F.conv_transpose2d(x, weight, padding=0, stride=2, groups=batch)
            out = out.view(batch, self.out_channel, *out.shape[-2:])
            return upfirdn2d(out, self.blur, pad=(1, 1))
        out = F.conv2d(x, weight, padding=self.padding, groups=batch)
        return out.view(batch, self.out_channel, *out.shape[-2:])


class StyledConv(nn.Module):
    def __init__(self, in_channel, out_channel, style_dim, resolution, upsample=False):
        super().__init__()
        self.conv = ModulatedConv2d(in_channel, out_channel, 3, style_dim, upsample=upsample)
        self.register_buffer("noise", torch.randn(1, 1, resolution, resolution))
        self.noise_weight = nn.Parameter(torch.full((1,), 0.1))
        self.bias = nn.Parameter(torch.zeros(1, out_channel, 1, 1))

    def forward(self, x, style):
        out = self.conv(x, style)
        out = out + self.noise_weight * self.noise
        return F.leaky_relu(out + self.bias, negative_slope=0.2) * 2**0.5


class ToRGB(nn.Module):
    def __init__(self, in_channel, style_dim, upsample=True):
        super().__init__()
        self.register_buffer("up_kernel", make_kernel([1, 3, 3, 1]) * 4)
        self.conv = ModulatedConv2d(in_channel, 3, 1, style_dim, demodulate=False)
        self.bias = nn.Parameter(torch.zeros(1, 3, 1, 1))

    def forward(self, x, style, skip=None):
        out = self.conv(x, style) + self.bias
        if skip is not None:
            out = out + upfirdn2d(skip, self.up_kernel, up=2, pad=(2, 1))
        return out


class Model(nn.Module):
    """StyleGAN2 generator: mapping network, modulated/demodulated grouped convolutions
    with blur upsampling, fixed noise buffers and RGB skip connections."""

    def __init__(self, size, style_dim, n_mlp, channels):
        super().__init__()
        self.style = nn.ModuleList(
            [EqualLinear(style_dim, style_dim, lr_mul=0.01, activation="fused_lrelu") for _ in range(n_mlp)]
        )
        self.input = nn.Parameter(torch.randn(1, channels[4], 4, 4))
        self.conv1 = StyledConv(channels[4], channels[4], style_dim, 4)
        self.to_rgb1 = ToRGB(channels[4], style_dim)
        self.convs, self.to_rgbs = nn.ModuleList(), nn.ModuleList()
        in_channel = channels[4]
        for i in range(3, int(math.log2(size)) + 1):
            out_channel = channels[2**i]
            self.convs.append(StyledConv(in_channel, out_channel, style_dim, 2**i, upsample=True))
            self.convs.append(StyledConv(out_channel, out_channel, style_dim, 2**i))
            self.to_rgbs.append(ToRGB(out_channel, style_dim))
            in_channel = out_channel

    def forward(self, z):
        w = z * torch.rsqrt(torch.mean(z**2, dim=1, keepdim=True) + 1e-8)
        for layer in self.style:
            w = layer(w)
        latent = w.unsqueeze(1).repeat(1, len(self.convs) + 2, 1)
        out = self.input.repeat(z.shape[0], 1, 1, 1)
        out = self.conv1(out, latent[:, 0])
        skip = self.to_rgb1(out, latent[:, 1])
        i = 1
        for conv1, conv2, to_rgb in zip(self.convs[::2], self.convs[1::2], self.to_rgbs):
            out = conv1(out, latent[:, i])
            out = conv2(out, latent[:, i + 1])
            skip = to_rgb(out, latent[:, i + 2], skip)
            i += 2
        return skip, w


def get_inputs():
    return [torch.randn(batch_size, style_dim)]


def get_init_inputs():
    return [size, style_dim, n_mlp, channels]
