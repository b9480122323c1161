import torch
import torch.nn as nn
import torch.nn.functional as F

B, C, S = 8, 60, 160


class ChannelNorm(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, ch, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, ch, 1, 1))

    def forward(self, x):
        mu = x.mean(1, keepdim=True)
        var = (x - mu).square().mean(1, keepdim=True)
        return (x - mu) / torch.sqrt(var + 1e-6) * self.weight + self.bias


class Model(nn.Module):
    """Image restoration block: gated halves of the channels after a depthwise conv, channel
    attention, global response norm in the feed-forward part, per-channel residual scales."""

    def __init__(self, ch):
        super().__init__()
        self.n1, self.n2 = ChannelNorm(ch), ChannelNorm(ch)
        self.conv1 = nn.Conv2d(ch, 2 * ch, 1)
        self.conv2 = nn.Conv2d(2 * ch, 2 * ch, 3, padding=1, groups=2 * ch)
        self.sca = nn.Conv2d(ch, ch, 1)
        self.conv3 = nn.Conv2d(ch, ch, 1)
        self.conv4 = nn.Conv2d(ch, 4 * ch, 1)
        self.grn_g = nn.Parameter(0.5 * torch.randn(1, 2 * ch, 1, 1))
        self.grn_b = nn.Parameter(0.1 * torch.randn(1, 2 * ch, 1, 1))
        self.conv5 = nn.Conv2d(2 * ch, ch, 1)
        self.beta = nn.Parameter(torch.full((1, ch, 1, 1), 0.5))
        self.gamma = nn.Parameter(torch.full((1, ch, 1, 1), 0.5))

    def forward(self, x):
        a, b = self.conv2(self.conv1(self.n1(x))).chunk(2, dim=1)
        h = a * b
        h = h * self.sca(h.mean(dim=(2, 3), keepdim=True) + 0.5)
        y = x + self.conv3(h) * self.beta
        h = F.glu(self.conv4(self.n2(y)), dim=1)
        gx = (h.square().mean(dim=(2, 3), keepdim=True) + 1e-6).sqrt()
        nx = gx / (gx.mean(dim=1, keepdim=True) + 1e-3)
        h = h + self.grn_g * (h * nx) + self.grn_b
        return y + self.conv5(h) * self.gamma


def get_inputs():
    return [torch.randn(B, C, S, S)]


def get_init_inputs():
    return [C]
