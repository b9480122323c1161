import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """3D conv, learned subtraction, instance norm, clamp, 3D max pool, mean over what is left of depth."""

    def __init__(self, in_ch, out_ch, lo, hi):
        super().__init__()
        self.conv = nn.Conv3d(in_ch, out_ch, 3, padding=1, bias=False)
        self.sub = nn.Parameter(torch.randn(1, out_ch, 1, 1, 1) * 0.1)
        self.norm = nn.InstanceNorm3d(out_ch, affine=True)
        self.lo = lo
        self.hi = hi

    def forward(self, x):
        y = self.conv(x)
        y = F.elu(y) - self.sub
        y = self.norm(y).clamp(self.lo, self.hi)
        y = F.max_pool3d(y, 2)
        return y.mean(dim=2)


batch = 8
in_ch = 16
out_ch = 24


def get_inputs():
    return [torch.randn(batch, in_ch, 24, 96, 96)]


def get_init_inputs():
    return [in_ch, out_ch, -1.0, 1.75]
