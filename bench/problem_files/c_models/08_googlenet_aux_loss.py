import torch
import torch.nn as nn
import torch.nn.functional as F


class BasicConv2d(nn.Module):
    def __init__(self, in_channels, out_channels, **kwargs):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, bias=False, **kwargs)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)), inplace=True)


class InceptionV1(nn.Module):
    def __init__(self, cin, c1, r3, c3, r5, c5, pp):
        super().__init__()
        self.branch1 = BasicConv2d(cin, c1, kernel_size=1)
        self.branch2 = nn.Sequential(BasicConv2d(cin, r3, kernel_size=1), BasicConv2d(r3, c3, kernel_size=3, padding=1))
        self.branch3 = nn.Sequential(BasicConv2d(cin, r5, kernel_size=1), BasicConv2d(r5, c5, kernel_size=5, padding=2))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), BasicConv2d(cin, pp, kernel_size=1))

    def forward(self, x):
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class InceptionC(nn.Module):
    """Factorised 1x7 / 7x1 block of v3."""

    def __init__(self, cin, c7, width):
        super().__init__()
        self.branch1x1 = BasicConv2d(cin, width, kernel_size=1)
        self.branch7x7_1 = BasicConv2d(cin, c7, kernel_size=1)
        self.branch7x7_2 = BasicConv2d(c7, c7, kernel_size=(1, 7), padding=(0, 3))
        self.branch7x7_3 = BasicConv2d(c7, width, kernel_size=(7, 1), padding=(3, 0))
        self.branch_pool = BasicConv2d(cin, width, kernel_size=1)

    def forward(self, x):
        a = self.branch1x1(x)
        b = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        c = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1, count_include_pad=False))
        return torch.cat((a, b, c), 1)


class InceptionAux(nn.Module):
    def __init__(self, cin, num_classes):
        super().__init__()
        self.conv = BasicConv2d(cin, 64, kernel_size=1)
        self.fc1 = nn.Linear(64 * 16, 256)
        self.fc2 = nn.Linear(256, num_classes)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(x, (4, 4))
        x = torch.flatten(self.conv(x), 1)
        return self.fc2(F.relu(self.fc1(x), inplace=True))


class Model(nn.Module):
    """GoogLeNet with one auxiliary classifier, LRN stem and combined cross-entropy loss."""

    def __init__(self, num_classes, aux_weight):
        super().__init__()
        self.aux_weight = aux_weight
        self.conv1 = BasicConv2d(3, 32, kernel_size=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.lrn = nn.LocalResponseNorm(5, alpha=1e-2, k=1.0)
        self.conv2 = BasicConv2d(32, 32, kernel_size=1)
        self.conv3 = BasicConv2d(32, 96, kernel_size=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception3a = InceptionV1(96, 32, 48, 64, 8, 16, 16)
        self.inception3b = InceptionV1(128, 64, 64, 96, 16, 48, 32)
        self.maxpool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception4a = InceptionV1(240, 96, 48, 104, 8, 24, 32)
        self.inception4b = InceptionC(256, 64, 80)
        self.aux = InceptionAux(256, num_classes)
        self.fc = nn.Linear(240, num_classes)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def transform_input(self, x):
        return torch.cat([x[:, i : i + 1] * (self.std[:, i : i + 1] / 0.5) + (self.mean[:, i : i + 1] - 0.5) / 0.5 for i in range(3)], 1)

    def forward(self, x, y):
        x = self.transform_input(x)
        x = self.lrn(self.maxpool1(self.conv1(x)))
        x = self.maxpool2(self.conv3(self.conv2(x)))
        x = self.inception3b(self.inception3a(x))
        x = self.maxpool3(x)
        x = self.inception4a(x)
        aux = self.aux(x)
        x = self.inception4b(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        logits = self.fc(x)
        loss = F.cross_entropy(logits, y) + self.aux_weight * F.cross_entropy(aux, y)
        return loss, logits, aux


def get_inputs():
    return [torch.rand(6, 3, 128, 128), torch.randint(0, 40, (6,))]


def get_init_inputs():
    return [40, 0.3]
