import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Average, max, power-average and adaptive pools with ceil_mode, excluded padding and divisor override meet on one odd grid."""

    def __init__(self, channels):
        super().__init__()
        self.w = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        y = x * self.w + 0.1
        a = F.avg_pool2d(y, (3, 4), stride=2, padding=(1, 2), ceil_mode=True, count_include_pad=False)
        b, idx = F.max_pool2d(y, 3, stride=2, padding=1, dilation=(1, 1), ceil_mode=True, return_indices=True)
        size = b.shape[-2:]
        c = F.lp_pool2d(y, 2.0, (2, 3), stride=2, ceil_mode=True)
        d = F.avg_pool2d(y, 5, stride=(3, 2), padding=2, ceil_mode=True, divisor_override=7)
        e = F.adaptive_avg_pool2d(a, size) - F.adaptive_max_pool2d(d, size)
        hit = (idx % x.shape[-1]).to(y.dtype) / x.shape[-1]  # column of each maximum
        c = F.pad(c, (1, size[1] - c.shape[-1] + 1, 0, size[0] - c.shape[-2]), value=-1.0)
        return e + b * hit + F.max_pool2d(c, 3, stride=1, padding=1, dilation=(1, 2))


def get_inputs():
    return [torch.randn(4, 19, 113, 109)]


def get_init_inputs():
    return [19]
