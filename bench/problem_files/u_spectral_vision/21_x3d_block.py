import torch
import torch.nn as nn
import torch.nn.functional as F


class SE3d(nn.Module):
    def __init__(self, c, ratio=0.0625, divisor=8):
        super().__init__()
        r = max(divisor, int(c * ratio + divisor / 2) // divisor * divisor)
        self.fc1 = nn.Conv3d(c, r, 1)
        self.fc2 = nn.Conv3d(r, c, 1)

    def forward(self, x):
        s = F.adaptive_avg_pool3d(x, (1, 1, 1))
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(s), inplace=True)))


class X3DTransform(nn.Module):
    def __init__(self, cin, cout, inner, stride, se):
        super().__init__()
        self.a = nn.Conv3d(cin, inner, 1, bias=False)
        self.a_bn = nn.BatchNorm3d(inner)
        self.b = nn.Conv3d(inner, inner, 3, stride=(1, stride, stride), padding=1, groups=inner, bias=False)
        self.b_bn = nn.BatchNorm3d(inner)
        self.se = SE3d(inner) if se else nn.Identity()
        self.c = nn.Conv3d(inner, cout, 1, bias=False)
        self.c_bn = nn.BatchNorm3d(cout)
        self.shortcut = None
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv3d(cin, cout, 1, stride=(1, stride, stride), bias=False),
                                          nn.BatchNorm3d(cout))

    def forward(self, x):
        y = F.relu(self.a_bn(self.a(x)))
        y = F.silu(self.se(self.b_bn(self.b(y))))
        y = self.c_bn(self.c(y))
        x = x if self.shortcut is None else self.shortcut(x)
        return F.relu(x + y)


class Model(nn.Module):
    """X3D video stage: (2+1)D depthwise-separable stem, then depthwise 3D bottlenecks with squeeze-excite."""

    def __init__(self, cin=3, width=8, inner=18, classes=6):
        super().__init__()
        self.conv_xy = nn.Conv3d(cin, width, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1), bias=False)
        self.conv_t = nn.Conv3d(width, width, (5, 1, 1), padding=(2, 0, 0), groups=width, bias=False)
        self.bn = nn.BatchNorm3d(width)
        self.block1 = X3DTransform(width, width, inner, 2, se=True)
        self.block2 = X3DTransform(width, width, inner, 1, se=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = F.relu(self.bn(self.conv_t(self.conv_xy(x))))
        x = self.block2(self.block1(x))
        return self.head(x.mean(dim=(2, 3, 4)))


def get_inputs():
    return [torch.randn(2, 3, 6, 30, 28)]


def get_init_inputs():
    return [3, 8, 18, 6]
