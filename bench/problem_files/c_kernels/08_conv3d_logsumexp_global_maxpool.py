import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Dilated 3d convolution with a leaky ReLU, max pooling over depth only, logsumexp over channels, a learned plane subtracted, global max over time."""

    def __init__(self, in_channels, out_channels, height, width):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size=3, padding=(1, 2, 2), dilation=(1, 2, 2))
        self.plane = nn.Parameter(torch.randn(height, width) * 0.1)

    def forward(self, x):
        y = F.leaky_relu(self.conv(x), 0.07)
        y = F.max_pool3d(y, kernel_size=(2, 1, 1), stride=(2, 1, 1))
        y = torch.logsumexp(y, dim=1)
        y = y - self.plane
        return torch.amax(y, dim=1)


def get_inputs():
    return [torch.randn(9, 6, 22, 61, 75)]


def get_init_inputs():
    return [6, 28, 61, 75]
