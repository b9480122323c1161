import torch
import torch.nn as nn
import torch.nn.functional as F


def make_divisible(v, divisor=8):
    new_v = max(divisor, int(v + divisor / 2) // divisor * divisor)
    if new_v < 0.9 * v:
        new_v += divisor
    return new_v


class SqueezeExcite(nn.Module):
    def __init__(self, chs, rd):
        super().__init__()
        self.conv_reduce = nn.Conv2d(chs, rd, 1)
        self.conv_expand = nn.Conv2d(rd, chs, 1)

    def forward(self, x):
        s = x.mean((2, 3), keepdim=True)
        s = F.silu(self.conv_reduce(s), inplace=True)
        s = self.conv_expand(s)
        return x * s.sigmoid()


class ConvBNAct(nn.Sequential):
    def __init__(self, i, o, k, s=1, groups=1, act=True):
        layers = [
            nn.Conv2d(i, o, k, s, (k - 1) // 2, groups=groups, bias=False),
            nn.BatchNorm2d(o, eps=1e-3, momentum=0.01),
        ]
        if act:
            layers.append(nn.SiLU(inplace=True))
        super().__init__(*layers)


class MBConv(nn.Module):
    def __init__(self, inp, out, k, s, expand, se_ratio=0.25):
        super().__init__()
        mid = make_divisible(inp * expand)
        self.use_res = s == 1 and inp == out
        layers = []
        if mid != inp:
            layers.append(ConvBNAct(inp, mid, 1))
        layers.append(ConvBNAct(mid, mid, k, s, groups=mid))
        layers.append(SqueezeExcite(mid, max(1, int(inp * se_ratio))))
        layers.append(ConvBNAct(mid, out, 1, act=False))
        self.block = nn.Sequential(*layers)

    def forward(self, x):
        y = self.block(x)
        if self.use_res:
            y += x
        return y


class Model(nn.Module):
    """EfficientNet-like network of MBConv blocks with squeeze-excite,
    run in channels_last, BatchNorm in training mode."""

    # expand, channels, repeats, stride, kernel
    CFG = [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 2, 2, 3),
        (6, 112, 2, 1, 5),
    ]

    def __init__(self, num_classes=37, stem=24, head=320):
        super().__init__()
        self.stem = ConvBNAct(3, stem, 3, 2)
        blocks = []
        c = stem
        for t, ch, n, s, k in self.CFG:
            for i in range(n):
                blocks.append(MBConv(c, ch, k, s if i == 0 else 1, t))
                c = ch
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = ConvBNAct(c, head, 1)
        self.drop = nn.Dropout(p=0.0, inplace=True)
        self.classifier = nn.Linear(head, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out")
                if m.bias is not None:
                    nn.init.zeros_(m.bias)
            elif isinstance(m, nn.Linear):
                nn.init.uniform_(m.weight, -0.05, 0.05)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        x = x.to(memory_format=torch.channels_last)
        x = self.stem(x)
        x = self.blocks(x)
        x = self.conv_head(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.classifier(self.drop(x))


def get_inputs():
    g = torch.Generator().manual_seed(2)
    return [torch.randn(5, 3, 116, 108, generator=g)]


def get_init_inputs():
    return [37, 24, 320]
