import torch
import torch.nn as nn


class Model(nn.Module):
    """Strip depthwise convs (1xk and kx1), global response norm over space, pointwise gate on the input."""

    def __init__(self, channels, k):
        super().__init__()
        self.dw = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.row = nn.Conv2d(channels, channels, (1, k), padding=(0, k // 2), groups=channels)
        self.col = nn.Conv2d(channels, channels, (k, 1), padding=(k // 2, 0), groups=channels)
        self.gamma = nn.Parameter(torch.rand(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.randn(1, channels, 1, 1) * 0.1)
        self.pw = nn.Conv2d(channels, channels, 1)
        nn.init.normal_(self.pw.weight, std=0.3)

    def forward(self, x):
        h = self.dw(x)
        h = h + self.col(self.row(h))
        g = torch.linalg.vector_norm(h, dim=(2, 3), keepdim=True)
        n = g / (g.mean(dim=1, keepdim=True) + 1e-6)
        h = self.gamma * (h * n) + self.beta + h
        return x * torch.sigmoid(self.pw(h))


batch_size = 6
channels = 90
height = 150
width = 151
kernel = 11


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, kernel]
