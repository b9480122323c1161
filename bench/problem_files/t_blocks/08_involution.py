import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Involution layer (kernel generated per pixel, shared across channels of a group)."""

    def __init__(self, ch, groups, k, reduction):
        super().__init__()
        self.k = k
        self.groups = groups
        self.reduce = nn.Conv2d(ch, ch // reduction, 1)
        self.bn = nn.BatchNorm2d(ch // reduction)
        self.span = nn.Conv2d(ch // reduction, k * k * groups, 1)
        self.proj = nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        g, k = self.groups, self.k
        ker = self.span(torch.relu(self.bn(self.reduce(x))))
        ker = ker.view(b, g, 1, k * k, h, w)
        patches = F.unfold(x, kernel_size=k, padding=k // 2)
        patches = patches.view(b, g, c // g, k * k, h, w)
        out = (ker * patches).sum(dim=3).reshape(b, c, h, w)
        return x + self.proj(F.gelu(out))


def get_inputs():
    return [torch.randn(2, 36, 23, 27)]


def get_init_inputs():
    return [36, 4, 5, 3]
