import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


class Chomp1d(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        return x[:, :, :-self.n].contiguous()


class GlobalLayerNorm(nn.Module):
    def __init__(self, c, eps=1e-8):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, c, 1))
        self.beta = nn.Parameter(torch.zeros(1, c, 1))
        self.eps = eps

    def forward(self, y):
        mean = y.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True)
        var = ((y - mean) ** 2).mean(dim=1, keepdim=True).mean(dim=2, keepdim=True)
        return self.gamma * (y - mean) / torch.pow(var + self.eps, 0.5) + self.beta


class TemporalBlock(nn.Module):
    def __init__(self, c, hidden, k, dilation, no_residual=False):
        super().__init__()
        pad = (k - 1) * dilation
        self.inp = weight_norm(nn.Conv1d(c, hidden, 1))
        self.prelu1 = nn.PReLU()
        self.norm1 = GlobalLayerNorm(hidden)
        self.dconv = weight_norm(nn.Conv1d(hidden, hidden, k, padding=pad, dilation=dilation, groups=hidden))
        self.chomp = Chomp1d(pad)
        self.prelu2 = nn.PReLU()
        self.norm2 = GlobalLayerNorm(hidden)
        self.res = None if no_residual else weight_norm(nn.Conv1d(hidden, c, 1))
        self.skip = weight_norm(nn.Conv1d(hidden, c, 1))

    def forward(self, x):
        h = self.norm1(self.prelu1(self.inp(x)))
        h = self.norm2(self.prelu2(self.chomp(self.dconv(h))))
        if self.res is not None:
            x = x + self.res(h)
        return x, self.skip(h)


class Model(nn.Module):
    """Causal TCN with depthwise dilated convolutions, weight norm, global layer norm and skip sum."""

    def __init__(self, cin=5, width=20, hidden=36, levels=4, k=3, out=2):
        super().__init__()
        self.bottleneck = nn.Conv1d(cin, width, 1)
        self.blocks = nn.ModuleList(
            TemporalBlock(width, hidden, k, 2 ** i, no_residual=i == levels - 1) for i in range(levels))
        self.head = nn.Conv1d(width, out, 1)

    def forward(self, x):
        x = self.bottleneck(x)
        skips = 0
        for blk in self.blocks:
            x, s = blk(x)
            skips = skips + s
        return self.head(F.relu(skips))


def get_inputs():
    return [torch.randn(2, 5, 143)]


def get_init_inputs():
    return [5, 20, 36, 4, 3, 2]
