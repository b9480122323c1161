import torch
import torch.nn as nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inplanes, planes, stride=1, dilation=1, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=stride, dilation=dilation, padding=dilation,
                               bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        residual = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            residual = self.downsample(x)
        out += residual
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, layers, output_stride=16):
        super().__init__()
        self.inplanes = 64
        if output_stride == 16:
            strides, dilations = [1, 2, 2, 1], [1, 1, 1, 2]
        else:
            strides, dilations = [1, 2, 1, 1], [1, 1, 2, 4]
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(64, layers[0], strides[0], dilations[0])
        self.layer2 = self._make_layer(128, layers[1], strides[1], dilations[1])
        self.layer3 = self._make_layer(256, layers[2], strides[2], dilations[2])
        self.layer4 = self._make_mg_unit(512, [1, 2, 4][: layers[3]], strides[3], dilations[3])

    def _downsample(self, planes, stride):
        if stride != 1 or self.inplanes != planes * 4:
            return nn.Sequential(
                nn.Conv2d(self.inplanes, planes * 4, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(planes * 4),
            )
        return None

    def _make_layer(self, planes, blocks, stride, dilation):
        layers = [Bottleneck(self.inplanes, planes, stride, dilation, self._downsample(planes, stride))]
        self.inplanes = planes * 4
        for _ in range(1, blocks):
            layers.append(Bottleneck(self.inplanes, planes, dilation=dilation))
        return nn.Sequential(*layers)

    def _make_mg_unit(self, planes, blocks, stride, dilation):
        layers = [Bottleneck(self.inplanes, planes, stride, blocks[0] * dilation, self._downsample(planes, stride))]
        self.inplanes = planes * 4
        for i in range(1, len(blocks)):
            layers.append(Bottleneck(self.inplanes, planes, stride=1, dilation=blocks[i] * dilation))
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.maxpool(x)
        x = self.layer1(x)
        low_level_feat = x
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        return x, low_level_feat


class _ASPPModule(nn.Module):
    def __init__(self, inplanes, planes, kernel_size, padding, dilation):
        super().__init__()
        self.atrous_conv = nn.Conv2d(inplanes, planes, kernel_size=kernel_size, stride=1, padding=padding,
                                     dilation=dilation, bias=False)
        self.bn = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.bn(self.atrous_conv(x)))


class ASPP(nn.Module):
    def __init__(self, inplanes=2048, planes=256, dilations=(1, 6, 12, 18)):
        super().__init__()
        self.aspp1 = _ASPPModule(inplanes, planes, 1, padding=0, dilation=dilations[0])
        self.aspp2 = _ASPPModule(inplanes, planes, 3, padding=dilations[1], dilation=dilations[1])
        self.aspp3 = _ASPPModule(inplanes, planes, 3, padding=dilations[2], dilation=dilations[2])
        self.aspp4 = _ASPPModule(inplanes, planes, 3, padding=dilations[3], dilation=dilations[3])
        self.global_avg_pool = nn.Sequential(
            nn.AdaptiveAvgPool2d((1, 1)), nn.Conv2d(inplanes, planes, 1, stride=1, bias=False),
            nn.BatchNorm2d(planes), nn.ReLU(),
        )
        self.conv1 = nn.Conv2d(planes * 5, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()

    def forward(self, x):
        x1 = self.aspp1(x)
        x2 = self.aspp2(x)
        x3 = self.aspp3(x)
        x4 = self.aspp4(x)
        x5 = self.global_avg_pool(x)
        x5 = F.interpolate(x5, size=x4.size()[2:], mode="bilinear", align_corners=True)
        x = torch.cat((x1, x2, x3, x4, x5), dim=1)
        return self.relu(self.bn1(self.conv1(x)))


class Decoder(nn.Module):
    def __init__(self, num_classes, low_level_inplanes=256):
        super().__init__()
        self.conv1 = nn.Conv2d(low_level_inplanes, 48, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(48)
        self.relu = nn.ReLU()
        self.last_conv = nn.Sequential(
            nn.Conv2d(304, 256, kernel_size=3, stride=1, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU(),
            nn.Conv2d(256, 256, kernel_size=3, stride=1, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU(),
            nn.Conv2d(256, num_classes, kernel_size=1, stride=1),
        )

    def forward(self, x, low_level_feat):
        low_level_feat = self.relu(self.bn1(self.conv1(low_level_feat)))
        x = F.interpolate(x, size=low_level_feat.size()[2:], mode="bilinear", align_corners=True)
        x = torch.cat((x, low_level_feat), dim=1)
        return self.last_conv(x)


class SegmentationLosses(nn.Module):
    def __init__(self, gamma=2.0, alpha=0.5, ignore_index=255):
        super().__init__()
        self.gamma, self.alpha, self.ignore_index = gamma, alpha, ignore_index

    def forward(self, logit, target):
        ce = F.cross_entropy(logit, target, ignore_index=self.ignore_index, reduction="none")
        logpt = -ce
        pt = torch.exp(logpt)
        focal = -((1 - pt) ** self.gamma) * self.alpha * logpt
        valid = (target != self.ignore_index).to(focal.dtype)
        return (focal * valid).sum() / valid.sum().clamp(min=1.0)


class Model(nn.Module):
    """DeepLabV3+ with a dilated ResNet (multi-grid), ASPP, decoder and focal loss."""

    def __init__(self, layers, output_stride, num_classes):
        super().__init__()
        self.backbone = ResNet(layers, output_stride)
        self.aspp = ASPP()
        self.decoder = Decoder(num_classes)
        self.criterion = SegmentationLosses()
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight)
        # small residual branches at the start
        for m in self.modules():
            if isinstance(m, Bottleneck):
                nn.init.constant_(m.bn3.weight, 0.2)

    def forward(self, input, target):
        x, low_level_feat = self.backbone(input)
        x = self.aspp(x)
        x = self.decoder(x, low_level_feat)
        x = F.interpolate(x, size=input.size()[2:], mode="bilinear", align_corners=True)
        return self.criterion(x, target), x


def get_inputs():
    target = torch.randint(0, 22, (4, 512, 512))
    target = torch.where(target == 21, torch.full_like(target, 255), target)
    return [torch.randn(4, 3, 512, 512), target]


def get_init_inputs():
    return [[2, 3, 4, 3], 16, 21]
