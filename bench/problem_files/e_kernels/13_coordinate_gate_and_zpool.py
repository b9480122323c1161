import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Gates an image by its row and column averages, mixed in one pointwise convolution, and then by a 7x7 convolution of its channel maximum and mean."""

    def __init__(self, channels, reduced):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, reduced, 1)
        self.norm = nn.GroupNorm(1, reduced)
        self.row = nn.Conv2d(reduced, channels, 1)
        self.column = nn.Conv2d(reduced, channels, 1)
        self.zpool = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x):
        h, w = x.shape[2:]
        rows = x.mean(dim=3, keepdim=True)
        columns = x.mean(dim=2, keepdim=True).permute(0, 1, 3, 2)
        y = F.hardswish(self.norm(self.squeeze(torch.cat([rows, columns], dim=2))))
        r, k = torch.split(y, [h, w], dim=2)
        x1 = x * torch.sigmoid(self.row(r)) * torch.sigmoid(self.column(k.permute(0, 1, 3, 2)))
        z = torch.cat([x1.amax(dim=1, keepdim=True), x1.mean(dim=1, keepdim=True)], dim=1)
        return x + x1 * torch.sigmoid(self.zpool(z))


def get_inputs():
    return [torch.randn(11, 83, 64, 97)]


def get_init_inputs():
    return [83, 16]
