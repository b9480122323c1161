import torch
import torch.nn as nn
import torch.nn.functional as F


def autopad(k, p=None):
    return k // 2 if p is None else p


class Conv(nn.Module):
    default_act = nn.SiLU()

    def __init__(self, c1, c2, k=1, s=1, p=None, g=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, autopad(k, p), groups=g, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = self.default_act if act is True else nn.Identity()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, c1, c2, shortcut=True, k=(3, 3), e=0.5):
        super().__init__()
        c_ = int(c2 * e)
        self.cv1 = Conv(c1, c_, k[0], 1)
        self.cv2 = Conv(c_, c2, k[1], 1)
        self.add = shortcut and c1 == c2

    def forward(self, x):
        return x + self.cv2(self.cv1(x)) if self.add else self.cv2(self.cv1(x))


class C2f(nn.Module):
    def __init__(self, c1, c2, n=1, shortcut=False, e=0.5):
        super().__init__()
        self.c = int(c2 * e)
        self.cv1 = Conv(c1, 2 * self.c, 1, 1)
        self.cv2 = Conv((2 + n) * self.c, c2, 1)
        self.m = nn.ModuleList(Bottleneck(self.c, self.c, shortcut, e=1.0) for _ in range(n))

    def forward(self, x):
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class SPPF(nn.Module):
    def __init__(self, c1, c2, k=5):
        super().__init__()
        self.cv1 = Conv(c1, c1 // 2, 1, 1)
        self.cv2 = Conv(c1 // 2 * 4, c2, 1, 1)
        self.m = nn.MaxPool2d(kernel_size=k, stride=1, padding=k // 2)

    def forward(self, x):
        y = [self.cv1(x)]
        y.extend(self.m(y[-1]) for _ in range(3))
        return self.cv2(torch.cat(y, 1))


class Detect(nn.Module):
    """Anchor-free head with distribution focal loss bins, decoded to xywh."""

    def __init__(self, nc, ch, strides, reg_max=16):
        super().__init__()
        self.nc, self.reg_max, self.strides = nc, reg_max, strides
        c2, c3 = max(16, ch[0] // 4, reg_max * 4), max(ch[0], min(nc, 100))
        self.cv2 = nn.ModuleList(nn.Sequential(Conv(x, c2, 3), Conv(c2, c2, 3), nn.Conv2d(c2, 4 * reg_max, 1)) for x in ch)
        self.cv3 = nn.ModuleList(nn.Sequential(Conv(x, c3, 3), Conv(c3, c3, 3), nn.Conv2d(c3, nc, 1)) for x in ch)

    def forward(self, feats):
        points, strides, outs = [], [], []
        for i, f in enumerate(feats):
            y = torch.cat((self.cv2[i](f), self.cv3[i](f)), 1)
            h, w = y.shape[-2:]
            sx = torch.arange(end=w, device=f.device, dtype=f.dtype) + 0.5
            sy = torch.arange(end=h, device=f.device, dtype=f.dtype) + 0.5
            sy, sx = torch.meshgrid(sy, sx, indexing="ij")
            points.append(torch.stack((sx, sy), -1).view(-1, 2))
            strides.append(torch.full((h * w, 1), self.strides[i], dtype=f.dtype, device=f.device))
            outs.append(y.view(y.shape[0], 4 * self.reg_max + self.nc, -1))
        anchors, stride = torch.cat(points).t(), torch.cat(strides).t()
        box, cls = torch.cat(outs, 2).split((self.reg_max * 4, self.nc), 1)
        b, _, a = box.shape
        proj = torch.arange(self.reg_max, dtype=box.dtype, device=box.device).view(1, self.reg_max, 1, 1)
        dist = (box.view(b, 4, self.reg_max, a).transpose(2, 1).softmax(1) * proj).sum(1)
        lt, rb = dist.chunk(2, 1)
        x1y1, x2y2 = anchors.unsqueeze(0) - lt, anchors.unsqueeze(0) + rb
        xywh = torch.cat(((x1y1 + x2y2) / 2, x2y2 - x1y1), 1) * stride
        return torch.cat((xywh, cls.sigmoid()), 1)


class Model(nn.Module):
    """Tail of YOLOv8-m: P3 and P4 come from the backbone, P5 is computed; top-down path; three heads."""

    def __init__(self, c3, c4, c5, nc, n):
        super().__init__()
        self.down5 = Conv(c4, c5, 3, 2)
        self.c2f5 = C2f(c5, c5, n, shortcut=True)
        self.sppf = SPPF(c5, c5)
        self.c2f_p4 = C2f(c5 + c4, c4, n)
        self.c2f_p3 = C2f(c4 + c3, c3, n)
        self.detect = Detect(nc, [c3, c4, c5], [8.0, 16.0, 32.0])

    def forward(self, p3, p4):
        p5 = self.sppf(self.c2f5(self.down5(p4)))
        u4 = self.c2f_p4(torch.cat([F.interpolate(p5, scale_factor=2, mode="nearest"), p4], 1))
        u3 = self.c2f_p3(torch.cat([F.interpolate(u4, scale_factor=2, mode="nearest"), p3], 1))
        return self.detect([u3, u4, p5])


def get_inputs():
    return [torch.randn(8, 192, 80, 80), torch.randn(8, 384, 40, 40)]


def get_init_inputs():
    return [192, 384, 576, 80, 2]
