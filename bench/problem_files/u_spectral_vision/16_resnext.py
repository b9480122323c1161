import torch
import torch.nn as nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    expansion = 2

    def __init__(self, inplanes, planes, stride=1, width_per_group=4, zero_init=False):
        super().__init__()
        groups = planes // width_per_group
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != planes * self.expansion:
            self.downsample = nn.Sequential(
                nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False),
                nn.Conv2d(inplanes, planes * self.expansion, 1, bias=False),
                nn.BatchNorm2d(planes * self.expansion))
        if zero_init:
            nn.init.constant_(self.bn3.weight, 0.2)

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Model(nn.Module):
    """ResNeXt bottlenecks, grouped 3x3 convolution with four channels a group, ResNet-D shortcut."""

    def __init__(self, cin=24, planes=32):
        super().__init__()
        self.layer = nn.Sequential(
            Bottleneck(cin, planes, stride=2),
            Bottleneck(planes * 2, planes, stride=1, zero_init=True))

    def forward(self, x):
        return self.layer(x)


def get_inputs():
    return [torch.randn(2, 24, 31, 37)]


def get_init_inputs():
    return [24, 32]
