import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def same_pad(x, k, s, d=1):
    """TensorFlow's SAME: the odd pixel goes to the bottom and the right."""
    ih, iw = x.shape[-2:]
    ph = max((math.ceil(ih / s) - 1) * s + (k - 1) * d + 1 - ih, 0)
    pw = max((math.ceil(iw / s) - 1) * s + (k - 1) * d + 1 - iw, 0)
    if ph > 0 or pw > 0:
        x = F.pad(x, [pw // 2, pw - pw // 2, ph // 2, ph - ph // 2])
    return x


class Conv2dSame(nn.Conv2d):
    def forward(self, x):
        x = same_pad(x, self.kernel_size[0], self.stride[0], self.dilation[0])
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class MaxPool2dSame(nn.MaxPool2d):
    def forward(self, x):
        ih, iw = x.shape[-2:]
        s, k = self.stride, self.kernel_size
        ph = max((-(-ih // s) - 1) * s + k - ih, 0)
        pw = max((-(-iw // s) - 1) * s + k - iw, 0)
        x = F.pad(x, [pw // 2, pw - pw // 2, ph // 2, ph - ph // 2], value=-float("inf"))
        return F.max_pool2d(x, k, s, 0)


def conv_bn_act(i, o, k, s=1, groups=1, act=True):
    mods = [Conv2dSame(i, o, k, stride=s, groups=groups, bias=False), nn.BatchNorm2d(o, eps=1e-3, momentum=0.01)]
    if act:
        mods.append(nn.ReLU6(inplace=True))
    return nn.Sequential(*mods)


class Separable(nn.Module):
    def __init__(self, i, o, s=1):
        super().__init__()
        self.dw = conv_bn_act(i, i, 3, s, groups=i)
        self.pw = conv_bn_act(i, o, 1, act=False)
        self.res = s == 1 and i == o

    def forward(self, x):
        y = self.pw(self.dw(x))
        return x + y if self.res else y


class Model(nn.Module):
    """SSDLite on a SAME-padded separable backbone; anchors are decoded to clipped corner boxes."""

    def __init__(self, widths, n_classes, ratios, min_scale, max_scale):
        super().__init__()
        self.n_classes = n_classes
        self.ratios = ratios
        self.stem = conv_bn_act(3, widths[0], 3, 2)
        self.pool = MaxPool2dSame(3, 2)
        self.stages = nn.ModuleList()
        for a, b in zip(widths[:-1], widths[1:]):
            self.stages.append(nn.Sequential(Separable(a, b, 2), Separable(b, b)))
        levels = widths[1:]
        k = len(ratios)
        self.cls = nn.ModuleList([nn.Sequential(Separable(c, c), nn.Conv2d(c, k * n_classes, 1)) for c in levels])
        self.reg = nn.ModuleList([nn.Sequential(Separable(c, c), nn.Conv2d(c, k * 4, 1)) for c in levels])
        step = (max_scale - min_scale) / max(len(levels) - 1, 1)
        self.scales = [min_scale + step * i for i in range(len(levels))]

    def anchors(self, h, w, scale, device):
        cy = (torch.arange(h, device=device, dtype=torch.float32) + 0.5) / h
        cx = (torch.arange(w, device=device, dtype=torch.float32) + 0.5) / w
        yy, xx = torch.meshgrid(cy, cx, indexing="ij")
        r = torch.tensor(self.ratios, device=device).sqrt()
        wh = torch.stack([scale * r, scale / r], dim=-1)
        ctr = torch.stack([xx, yy], dim=-1).view(-1, 1, 2).expand(-1, len(self.ratios), 2)
        return torch.cat([ctr, wh.unsqueeze(0).expand(h * w, -1, -1)], dim=-1).reshape(-1, 4)

    def forward(self, images):
        x = self.pool(self.stem(images))
        logits, deltas, anchors = [], [], []
        for stage, cls, reg, scale in zip(self.stages, self.cls, self.reg, self.scales):
            x = stage(x)
            n, _, h, w = x.shape
            logits.append(cls(x).permute(0, 2, 3, 1).reshape(n, -1, self.n_classes))
            deltas.append(reg(x).permute(0, 2, 3, 1).reshape(n, -1, 4))
            anchors.append(self.anchors(h, w, scale, x.device))
        scores = torch.cat(logits, 1).softmax(-1)
        d, a = torch.cat(deltas, 1), torch.cat(anchors, 0)
        ctr = a[:, :2] + 0.1 * d[..., :2] * a[:, 2:]
        size = a[:, 2:] * torch.exp((0.2 * d[..., 2:]).clamp(max=math.log(1000.0 / 16)))
        boxes = torch.cat([ctr - size / 2, ctr + size / 2], -1).clamp(0, 1)
        best, label = scores[..., 1:].max(-1)
        top, keep = best.topk(20, dim=1)
        picked = boxes.gather(1, keep.unsqueeze(-1).expand(-1, -1, 4))
        return {"boxes": picked, "scores": top, "labels": label.gather(1, keep) + 1, "raw": torch.cat(logits, 1)}


def get_inputs():
    return [torch.randn(2, 3, 101, 122)]


def get_init_inputs():
    return [[14, 26, 44, 60], 8, [1.0, 2.0, 0.5], 0.2, 0.8]
