import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Conv to depth bins, separable position table, softmax over bins, expectation and entropy maps."""

    def __init__(self, in_ch, bins, height, width):
        super().__init__()
        self.conv = nn.Conv2d(in_ch, bins, 3, padding=1)
        self.row = nn.Parameter(torch.randn(bins, height, 1) * 0.1)
        self.col = nn.Parameter(torch.randn(bins, 1, width) * 0.1)
        self.centers = nn.Parameter(torch.linspace(0.5, 10.0, bins))

    def forward(self, x):
        logits = self.conv(x) + (self.row + self.col)
        logp = F.log_softmax(logits, dim=1)
        p = logp.exp()
        depth = (p * self.centers.view(1, -1, 1, 1)).sum(dim=1, keepdim=True)
        entropy = -(p * logp).sum(dim=1, keepdim=True)
        detail = depth - F.avg_pool2d(depth, 5, stride=1, padding=2, count_include_pad=False)
        return torch.cat([depth, detail, entropy], dim=1)


batch = 16
in_ch = 32
bins = 40
height = 160
width = 160


def get_inputs():
    return [torch.randn(batch, in_ch, height, width)]


def get_init_inputs():
    return [in_ch, bins, height, width]
