import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Circularly padded conv3d, per-channel multiplier, min over depth, softplus, channel-sum normalisation."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 3, padding=1, padding_mode="circular")
        self.scale = nn.Parameter(torch.randn(out_channels, 1, 1, 1) * 0.3 + 1.5)

    def forward(self, x):
        y = self.conv(x) * self.scale
        y = torch.amin(y, dim=2)
        y = F.softplus(y)
        return y / y.sum(dim=1, keepdim=True)


batch_size = 4
in_channels = 16
out_channels = 28
depth = 30
height = 51
width = 50


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
