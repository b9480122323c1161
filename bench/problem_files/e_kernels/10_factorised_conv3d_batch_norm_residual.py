import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A spatial and then a temporal 3d convolution, each with batch norm on the batch's own statistics, a strided pooled residual, capped ReLU and a peak over time."""

    def __init__(self, channels, middle, out):
        super().__init__()
        self.space = nn.Conv3d(channels, middle, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1), bias=False)
        self.norm1 = nn.BatchNorm3d(middle, track_running_stats=False)
        self.time = nn.Conv3d(middle, out, (3, 1, 1), padding=(1, 0, 0), bias=False)
        self.norm2 = nn.BatchNorm3d(out, track_running_stats=False)
        self.short = nn.Conv3d(channels, out, 1, bias=False)

    def forward(self, x):
        h = F.leaky_relu(self.norm1(self.space(x)), 0.05)
        h = self.norm2(self.time(h))
        s = self.short(F.avg_pool3d(x, (1, 2, 2), ceil_mode=True, count_include_pad=False))
        y = torch.clamp(h + s, 0.0, 4.0)
        return y.amax(dim=2) - 0.5 * y.mean(dim=2), y.sum(dim=(3, 4)).softmax(dim=2)


def get_inputs():
    return [torch.randn(3, 12, 11, 61, 57)]


def get_init_inputs():
    return [12, 22, 30]
