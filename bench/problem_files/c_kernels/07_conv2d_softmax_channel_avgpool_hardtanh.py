import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Strided asymmetric convolution, softmax over channels, rescaling, ceil-mode average pooling, subtraction of the spatial mean, hardtanh."""

    def __init__(self, in_channels, out_channels, kernel_size, limit):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride=(1, 2), padding=(2, 1))
        self.limit = limit

    def forward(self, x):
        y = self.conv(x)
        y = torch.softmax(y, dim=1) * y.shape[1]
        y = F.avg_pool2d(y, kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)
        y = y - y.mean(dim=(2, 3), keepdim=True)
        return F.hardtanh(y, -self.limit, self.limit)


def get_inputs():
    return [torch.randn(37, 11, 123, 166)]


def get_init_inputs():
    return [11, 46, (5, 3), 0.25]
