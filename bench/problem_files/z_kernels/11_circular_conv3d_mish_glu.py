import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """3-D convolution with circular sides, GroupNorm of odd groups, mish, GLU, dilated depthwise, residual."""

    def __init__(self, cin, cmid, groups, gn):
        super().__init__()
        self.c1 = nn.Conv3d(cin, cmid, (1, 3, 5), groups=groups, bias=False)
        self.gn = nn.GroupNorm(gn, cmid)
        self.c2 = nn.Conv3d(cmid // 2, cmid // 2, (3, 1, 1), padding=(2, 0, 0), dilation=(2, 1, 1), groups=cmid // 2)
        self.wz = nn.Parameter(torch.randn(1, cmid // 2, 1, 1, 1))

    def forward(self, x):
        y = F.pad(x, (2, 2, 1, 1, 0, 0), mode="circular")
        y = F.mish(self.gn(self.c1(y)))
        y = F.glu(y, dim=1)
        z = self.c2(y)
        z = z * torch.sigmoid(z.mean(dim=(3, 4), keepdim=True) * self.wz) + y
        return z - F.avg_pool3d(z, (3, 1, 3), stride=1, padding=(1, 0, 1)), z.amax(dim=2)


def get_inputs():
    return [torch.randn(4, 24, 19, 67, 71)]


def get_init_inputs():
    return [24, 42, 3, 7]
