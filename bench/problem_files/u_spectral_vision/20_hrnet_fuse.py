import torch
import torch.nn as nn
import torch.nn.functional as F


class BasicBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c, momentum=0.1)
        self.conv2 = nn.Conv2d(c, c, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c, momentum=0.1)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + x)


class Model(nn.Module):
    """High-resolution module: three parallel branches exchanged by strided convolutions and upsampling."""

    def __init__(self, channels=(8, 16, 24), out=5):
        super().__init__()
        self.n = len(channels)
        self.branches = nn.ModuleList(BasicBlock(c) for c in channels)
        fuse = []
        for i in range(self.n):
            row = []
            for j in range(self.n):
                if j > i:
                    row.append(nn.Sequential(nn.Conv2d(channels[j], channels[i], 1, bias=False),
                                             nn.BatchNorm2d(channels[i])))
                elif j == i:
                    row.append(nn.Identity())
                else:
                    steps = []
                    for k in range(i - j):
                        last = k == i - j - 1
                        co = channels[i] if last else channels[j]
                        steps += [nn.Conv2d(channels[j], co, 3, 2, 1, bias=False), nn.BatchNorm2d(co)]
                        if not last:
                            steps.append(nn.ReLU(inplace=True))
                    row.append(nn.Sequential(*steps))
            fuse.append(nn.ModuleList(row))
        self.fuse = nn.ModuleList(fuse)
        self.head = nn.Conv2d(sum(channels), out, 1)

    def forward(self, x0, x1, x2):
        xs = [b(x) for b, x in zip(self.branches, (x0, x1, x2))]
        fused = []
        for i in range(self.n):
            y = 0
            for j in range(self.n):
                z = self.fuse[i][j](xs[j])
                if j > i:
                    z = F.interpolate(z, size=xs[i].shape[-2:], mode="bilinear", align_corners=True)
                y = y + z
            fused.append(F.relu(y))
        h, w = fused[0].shape[-2:]
        feats = [fused[0]] + [F.interpolate(f, size=(h, w), mode="nearest") for f in fused[1:]]
        return self.head(torch.cat(feats, 1))


def get_inputs():
    return [torch.randn(2, 8, 30, 26), torch.randn(2, 16, 15, 13), torch.randn(2, 24, 8, 7)]


def get_init_inputs():
    return [(8, 16, 24), 5]
