import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Conv2dSame(nn.Conv2d):
    """TensorFlow 'SAME' padding computed from the input size."""

    def forward(self, x):
        ih, iw = x.shape[-2:]
        kh, kw = self.weight.shape[-2:]
        sh, sw = self.stride
        oh, ow = math.ceil(ih / sh), math.ceil(iw / sw)
        ph = max((oh - 1) * sh + (kh - 1) * self.dilation[0] + 1 - ih, 0)
        pw = max((ow - 1) * sw + (kw - 1) * self.dilation[1] + 1 - iw, 0)
        if ph > 0 or pw > 0:
            x = F.pad(x, [pw // 2, pw - pw // 2, ph // 2, ph - ph // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def drop_connect(x, p, training):
    if not training or p == 0.0:
        return x
    keep = 1 - p
    mask = torch.floor(keep + torch.rand(x.shape[0], 1, 1, 1, dtype=x.dtype, device=x.device))
    return x / keep * mask


class MBConv(nn.Module):
    def __init__(self, cin, cout, k, stride, expand=6, se_ratio=0.25, drop=0.0, bn_mom=0.01, bn_eps=1e-3):
        super().__init__()
        mid = cin * expand
        self.skip = stride == 1 and cin == cout
        self.drop = drop
        self.expand = expand
        if expand != 1:
            self._expand_conv = Conv2dSame(cin, mid, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(mid, momentum=bn_mom, eps=bn_eps)
        self._depthwise_conv = Conv2dSame(mid, mid, k, stride=stride, groups=mid, bias=False)
        self._bn1 = nn.BatchNorm2d(mid, momentum=bn_mom, eps=bn_eps)
        sq = max(1, int(cin * se_ratio))
        self._se_reduce = nn.Conv2d(mid, sq, 1)
        self._se_expand = nn.Conv2d(sq, mid, 1)
        self._project_conv = Conv2dSame(mid, cout, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(cout, momentum=bn_mom, eps=bn_eps)

    def forward(self, inputs):
        x = inputs
        if self.expand != 1:
            x = F.silu(self._bn0(self._expand_conv(x)))
        x = F.silu(self._bn1(self._depthwise_conv(x)))
        s = F.adaptive_avg_pool2d(x, 1)
        s = self._se_expand(F.silu(self._se_reduce(s)))
        x = torch.sigmoid(s) * x
        x = self._bn2(self._project_conv(x))
        if self.skip:
            x = drop_connect(x, self.drop, self.training) + inputs
        return x


class Model(nn.Module):
    """EfficientNet MBConv stack: SAME padding, squeeze-excite, swish; stochastic depth off."""

    def __init__(self, cin=12, width=16):
        super().__init__()
        self.blocks = nn.Sequential(
            MBConv(cin, cin, 3, 1, expand=1),
            MBConv(cin, width, 5, 2, expand=4),
            MBConv(width, width, 3, 1, expand=6, drop=0.0),
        )

    def forward(self, x):
        return self.blocks(x)


def get_inputs():
    return [torch.randn(2, 12, 33, 30)]


def get_init_inputs():
    return [12, 16]
