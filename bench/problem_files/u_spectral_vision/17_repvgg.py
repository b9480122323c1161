import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_bn(cin, cout, k, stride, padding, groups=1):
    result = nn.Sequential()
    result.add_module("conv", nn.Conv2d(cin, cout, k, stride, padding, groups=groups, bias=False))
    result.add_module("bn", nn.BatchNorm2d(cout))
    return result


class RepVGGBlock(nn.Module):
    def __init__(self, cin, cout, stride=1, groups=1):
        super().__init__()
        self.groups = groups
        self.cin = cin
        self.rbr_identity = nn.BatchNorm2d(cin) if cin == cout and stride == 1 else None
        self.rbr_dense = conv_bn(cin, cout, 3, stride, 1, groups)
        self.rbr_1x1 = conv_bn(cin, cout, 1, stride, 0, groups)

    def forward(self, x):
        id_out = 0 if self.rbr_identity is None else self.rbr_identity(x)
        return F.relu(self.rbr_dense(x) + self.rbr_1x1(x) + id_out)

    def get_custom_L2(self):
        """Weight decay on the equivalent kernel, from running statistics."""
        K3, K1 = self.rbr_dense.conv.weight, self.rbr_1x1.conv.weight
        d, o = self.rbr_dense.bn, self.rbr_1x1.bn
        t3 = (d.weight / (d.running_var + d.eps).sqrt()).reshape(-1, 1, 1, 1).detach()
        t1 = (o.weight / (o.running_var + o.eps).sqrt()).reshape(-1, 1, 1, 1).detach()
        l2_circle = (K3 ** 2).sum() - (K3[:, :, 1:2, 1:2] ** 2).sum()
        eq = K3[:, :, 1:2, 1:2] * t3 + K1 * t1
        l2_eq = (eq ** 2 / (t3 ** 2 + t1 ** 2)).sum()
        return l2_eq + l2_circle


class Model(nn.Module):
    """RepVGG training-time blocks: 3x3, 1x1 and identity branches each with batch norm; custom L2 as second output."""

    def __init__(self, cin=3, width=20, groups=2):
        super().__init__()
        self.stage0 = RepVGGBlock(cin, width, stride=2)
        self.stage1 = RepVGGBlock(width, width, stride=1, groups=groups)
        self.stage2 = RepVGGBlock(width, width, stride=1)

    def forward(self, x):
        y = self.stage2(self.stage1(self.stage0(x)))
        reg = sum(m.get_custom_L2() for m in self.modules() if isinstance(m, RepVGGBlock))
        return y, reg


def get_inputs():
    return [torch.randn(3, 3, 51, 47)]


def get_init_inputs():
    return [3, 20, 2]
