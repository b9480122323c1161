import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """WaveNet-style block: causal dilated conv1d, tanh/sigmoid gate, 1x1 residual and skip projections."""

    def __init__(self, channels, skip_channels, kernel_size, dilation):
        super().__init__()
        self.pad = (kernel_size - 1) * dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size, dilation=dilation)
        self.res = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip_channels, 1)

    def forward(self, x):
        h = self.conv(F.pad(x, (self.pad, 0)))
        a, b = h.chunk(2, dim=1)
        g = torch.tanh(a) * torch.sigmoid(b)
        return (x + self.res(g)) * 0.5 ** 0.5, self.skip(g)


batch_size = 10
channels = 120
skip_channels = 75
length = 8001
kernel_size = 3
dilation = 27


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, skip_channels, kernel_size, dilation]
