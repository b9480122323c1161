import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Depthwise 5x5 convolution with hardswish, a squeeze-and-excite gate through hardsigmoid, a pointwise convolution and batch norm."""

    def __init__(self, channels, squeeze, out_channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 5, stride=2, padding=2, groups=channels, bias=False)
        self.reduce = nn.Conv2d(channels, squeeze, 1)
        self.expand = nn.Conv2d(squeeze, channels, 1)
        self.pointwise = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        y = F.hardswish(self.depthwise(x))
        s = F.adaptive_avg_pool2d(y, 1)
        s = F.hardsigmoid(self.expand(F.relu(self.reduce(s))))
        return self.bn(self.pointwise(y * s))


def get_inputs():
    return [torch.randn(26, 88, 77, 101)]


def get_init_inputs():
    return [88, 22, 40]
