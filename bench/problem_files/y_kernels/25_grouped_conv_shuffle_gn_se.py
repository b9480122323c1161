import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grouped conv with channel shuffle, group norm, hardswish, squeeze-and-excite and residual."""

    def __init__(self, channels, groups, norm_groups, reduction):
        super().__init__()
        self.groups = groups
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False)
        self.norm = nn.GroupNorm(norm_groups, channels)
        self.fc1 = nn.Linear(channels, channels // reduction)
        self.fc2 = nn.Linear(channels // reduction, channels)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.conv(x)
        y = y.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(b, c, h, w)
        y = F.hardswish(self.norm(y))
        s = F.relu(self.fc1(y.mean(dim=(2, 3))))
        s = F.hardsigmoid(self.fc2(s))
        return x + y * s[:, :, None, None]


batch_size = 12
channels = 240
groups = 5
norm_groups = 15
reduction = 8
height = 56
width = 55


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, groups, norm_groups, reduction]
