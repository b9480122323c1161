import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Pyramid pooling: adaptive averages at several scales, 1x1 convs, bilinear upsampling, concat, fuse, softmax."""

    def __init__(self, channels, branch, classes, scales):
        super().__init__()
        self.scales = scales
        self.branches = nn.ModuleList([nn.Conv2d(channels, branch, 1) for _ in scales])
        self.fuse = nn.Conv2d(channels + branch * len(scales), classes, 1)

    def forward(self, x):
        size = x.shape[-2:]
        feats = [x]
        for s, conv in zip(self.scales, self.branches):
            p = F.relu(conv(F.adaptive_avg_pool2d(x, s)))
            feats.append(F.interpolate(p, size=size, mode="bilinear", align_corners=False))
        y = self.fuse(torch.cat(feats, dim=1))
        y = F.interpolate(y, scale_factor=2, mode="nearest")
        return torch.softmax(y, dim=1)


batch_size = 6
channels = 200
branch = 50
classes = 21
height = 93
width = 95


def get_inputs():
    offset = torch.randn(batch_size, channels, 1, 1)
    return [torch.randn(batch_size, channels, height, width) + offset]


def get_init_inputs():
    return [channels, branch, classes, [1, 2, 3, 6]]
