import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Anisotropic transposed conv, softmax over channels, learned per-channel multiplier, sum over width, GELU."""

    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super().__init__()
        self.deconv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride)
        self.multiplier = nn.Parameter(torch.rand(out_channels, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.randn(out_channels, 1) * 0.5)

    def forward(self, x):
        y = torch.softmax(self.deconv(x) * 3.0, dim=1)
        y = (y * self.multiplier).sum(dim=3)
        return F.gelu(y + self.shift)


batch_size = 16
in_channels = 64
out_channels = 40
height = 45
width = 60
kernel_size = (3, 5)
stride = (2, 3)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride]
