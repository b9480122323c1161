import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Causal dilated grouped 1d convolution with a tanh-sigmoid gate, a pointwise projection, the residual and a max pool over time."""

    def __init__(self, channels, kernel_size, dilation, groups):
        super().__init__()
        self.left = (kernel_size - 1) * dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size, dilation=dilation, groups=groups)
        self.proj = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        h = self.conv(F.pad(x, (self.left, 0)))
        a, g = h.chunk(2, dim=1)
        h = self.proj(torch.tanh(a) * torch.sigmoid(g))
        y = (x + h) * 0.7071067811865476
        return F.max_pool1d(y, kernel_size=5, stride=3, padding=2)


def get_inputs():
    return [torch.randn(14, 90, 6007)]


def get_init_inputs():
    return [90, 4, 7, 5]
