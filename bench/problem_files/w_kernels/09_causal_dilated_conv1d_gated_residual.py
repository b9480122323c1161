import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """One gated dilated causal block: left pad, dilated conv, tanh * sigmoid, 1x1 conv split in residual and skip."""

    def __init__(self, ch, kernel, dilation):
        super().__init__()
        self.left = (kernel - 1) * dilation
        self.conv = nn.Conv1d(ch, 2 * ch, kernel, dilation=dilation)
        self.mix = nn.Conv1d(ch, 2 * ch, 1)

    def forward(self, x):
        f, g = self.conv(F.pad(x, (self.left, 0))).chunk(2, dim=1)
        h = torch.tanh(f) * torch.sigmoid(g)
        res, skip = self.mix(h).chunk(2, dim=1)
        return (x + res) * math.sqrt(0.5), F.relu(skip).sum(dim=1)


batch = 24
ch = 96
length = 7999


def get_inputs():
    return [torch.randn(batch, ch, length)]


def get_init_inputs():
    return [ch, 3, 4]
