import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grouped conv, batch norm with stored statistics, channel shuffle, maxout over triples, channel excitation."""

    def __init__(self, in_ch, out_ch, groups):
        super().__init__()
        self.groups = groups
        self.conv = nn.Conv2d(in_ch, out_ch, 3, padding=1, groups=groups, bias=False)
        self.register_buffer("mean", torch.randn(out_ch) * 0.1)
        self.register_buffer("var", torch.rand(out_ch) * 0.5 + 0.2)
        self.weight = nn.Parameter(torch.rand(out_ch) + 0.5)
        self.bias = nn.Parameter(torch.randn(out_ch) * 0.1)

    def forward(self, x):
        y = self.conv(x)
        y = F.batch_norm(y, self.mean, self.var, self.weight, self.bias, training=False)
        n, c, h, w = y.shape
        y = y.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)
        y = y.view(n, c // 3, 3, h, w).amax(dim=2)
        s = F.hardsigmoid(y.mean(dim=(2, 3), keepdim=True) * 3.0)
        return y * s


batch = 32
in_ch = 120
out_ch = 180
groups = 6


def get_inputs():
    return [torch.randn(batch, in_ch, 75, 75)]


def get_init_inputs():
    return [in_ch, out_ch, groups]
