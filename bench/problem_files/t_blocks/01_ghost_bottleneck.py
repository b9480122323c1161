import math
import torch
import torch.nn as nn


class GhostModule(nn.Module):
    def __init__(self, inp, oup, ratio=2, dw_size=3, relu=True):
        super().__init__()
        self.oup = oup
        init_ch = math.ceil(oup / ratio)
        new_ch = init_ch * (ratio - 1)
        self.primary = nn.Sequential(
            nn.Conv2d(inp, init_ch, 1, bias=False),
            nn.BatchNorm2d(init_ch),
            nn.ReLU(inplace=True) if relu else nn.Identity(),
        )
        self.cheap = nn.Sequential(
            nn.Conv2d(init_ch, new_ch, dw_size, padding=dw_size // 2, groups=init_ch, bias=False),
            nn.BatchNorm2d(new_ch),
            nn.ReLU(inplace=True) if relu else nn.Identity(),
        )

    def forward(self, x):
        x1 = self.primary(x)
        x2 = self.cheap(x1)
        return torch.cat([x1, x2], dim=1)[:, : self.oup]


class SqueezeExcite(nn.Module):
    def __init__(self, ch, reduction=4):
        super().__init__()
        self.fc1 = nn.Conv2d(ch, ch // reduction, 1)
        self.fc2 = nn.Conv2d(ch // reduction, ch, 1)

    def forward(self, x):
        s = x.mean(dim=(2, 3), keepdim=True)
        s = self.fc2(torch.relu(self.fc1(s)))
        return x * torch.clamp(s + 3.0, 0.0, 6.0) / 6.0


class Model(nn.Module):
    """GhostNet bottleneck with stride 2 and a depthwise shortcut."""

    def __init__(self, inp, mid, oup):
        super().__init__()
        self.ghost1 = GhostModule(inp, mid, relu=True)
        self.dw = nn.Conv2d(mid, mid, 3, stride=2, padding=1, groups=mid, bias=False)
        self.dw_bn = nn.BatchNorm2d(mid)
        self.se = SqueezeExcite(mid)
        self.ghost2 = GhostModule(mid, oup, relu=False)
        self.shortcut = nn.Sequential(
            nn.Conv2d(inp, inp, 3, stride=2, padding=1, groups=inp, bias=False),
            nn.BatchNorm2d(inp),
            nn.Conv2d(inp, oup, 1, bias=False),
            nn.BatchNorm2d(oup),
        )

    def forward(self, x):
        y = self.ghost1(x)
        y = self.dw_bn(self.dw(y))
        y = self.se(y)
        y = self.ghost2(y)
        return y + self.shortcut(x)


def get_inputs():
    return [torch.randn(2, 27, 45, 45)]


def get_init_inputs():
    return [27, 75, 41]
