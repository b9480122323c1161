import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Style-transfer block: reflect-padded conv, affine instance norm, Mish, residual, 1x1 conv, pixel shuffle, tanh."""

    def __init__(self, channels, out_channels, upscale):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 5, padding=2, padding_mode="reflect", bias=False)
        self.norm = nn.InstanceNorm2d(channels, affine=True)
        self.expand = nn.Conv2d(channels, out_channels * upscale ** 2, 1)
        self.shuffle = nn.PixelShuffle(upscale)

    def forward(self, x):
        h = x + F.mish(self.norm(self.conv(x)))
        return torch.tanh(self.shuffle(self.expand(h)))


batch_size = 8
channels = 48
out_channels = 5
upscale = 3
height = 130
width = 142


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, out_channels, upscale]
