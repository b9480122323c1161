import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grouped transposed conv3d, leaky ReLU, adaptive max-minus-average pooling, channel RMS norm."""

    def __init__(self, in_channels, out_channels, groups, out_size):
        super().__init__()
        self.deconv = nn.ConvTranspose3d(in_channels, out_channels, 3, stride=2, groups=groups)
        self.out_size = out_size
        self.gain = nn.Parameter(torch.rand(1, out_channels, 1, 1, 1) + 0.5)

    def forward(self, x):
        y = F.leaky_relu(self.deconv(x), 0.1)
        y = F.adaptive_max_pool3d(y, self.out_size) - F.adaptive_avg_pool3d(y, self.out_size)
        y = y * torch.rsqrt(y.square().mean(dim=1, keepdim=True) + 1e-3)
        return y * self.gain


batch_size = 5
in_channels = 32
out_channels = 44
groups = 4
depth = 14
height = 21
width = 22
out_size = (10, 17, 22)


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, groups, out_size]
