import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Convolution, non-overlapping and odd pools placed right before batch and group norm in training mode."""

    def __init__(self, cin, c):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, c, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, c, 3, padding=2, dilation=2, groups=c, bias=False)
        self.gn = nn.GroupNorm(3, c)
        self.bn2 = nn.BatchNorm2d(c, affine=False)

    def forward(self, x):
        a = F.relu(self.conv1(x))                          # zeros tie inside pooling windows
        p2 = F.max_pool2d(a, 2)                            # 61 -> 30, last row and column unused
        b = self.bn1(p2)
        m4 = self.bn2(F.avg_pool2d(a, 4, ceil_mode=True, count_include_pad=False))
        d = self.conv2(torch.tanh(b)) + b
        odd = F.max_pool2d(d, (5, 3), stride=(2, 3), padding=(2, 1), dilation=(1, 1), ceil_mode=True)
        dil = F.max_pool2d(d, 3, stride=2, padding=1, dilation=3)
        g = self.gn(F.avg_pool2d(d, 2) - 0.5 * F.max_pool2d(d, 2))
        s = F.silu(g).mean(dim=(2, 3)) + m4.square().amax(dim=(2, 3))
        return s, odd * s[:, :, None, None], dil.sum(dim=1), b.amin(dim=(0, 2))


def get_inputs():
    return [torch.randn(7, 5, 61, 59)]


def get_init_inputs():
    return [5, 12]
