import itertools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SepConv(nn.Module):
    """Depthwise 3x3 then pointwise, with TF 'same' padding and optional norm."""

    def __init__(self, c_in, c_out=None, norm=True):
        super().__init__()
        c_out = c_out or c_in
        self.dw = nn.Conv2d(c_in, c_in, 3, groups=c_in, bias=False)
        self.pw = nn.Conv2d(c_in, c_out, 1)
        self.bn = nn.BatchNorm2d(c_out, momentum=0.01, eps=1e-3) if norm else None

    def forward(self, x):
        x = self.pw(self.dw(F.pad(x, (1, 1, 1, 1))))
        return x if self.bn is None else self.bn(x)


def same_pool(x):
    h, w = x.shape[-2:]
    ph, pw = max((-(-h // 2) - 1) * 2 + 3 - h, 0), max((-(-w // 2) - 1) * 2 + 3 - w, 0)
    return F.max_pool2d(F.pad(x, (pw // 2, pw - pw // 2, ph // 2, ph - ph // 2)), 3, 2)


class BiFPN(nn.Module):
    def __init__(self, c, n_levels, eps=1e-4):
        super().__init__()
        self.n, self.eps = n_levels, eps
        self.td, self.bu = [nn.ModuleList([SepConv(c) for _ in range(n_levels - 1)]) for _ in range(2)]
        self.w_td = nn.Parameter(torch.ones(n_levels - 1, 2))
        self.w_bu = nn.Parameter(torch.ones(n_levels - 1, 3))

    def forward(self, feats):
        mids = [None] * (self.n - 1) + [feats[-1]]
        for i in range(self.n - 2, -1, -1):
            w = F.relu(self.w_td[i])
            w = w / (w.sum() + self.eps)
            up = F.interpolate(mids[i + 1], size=feats[i].shape[-2:], mode="nearest")
            mids[i] = self.td[i](F.silu(w[0] * feats[i] + w[1] * up))
        outs = [mids[0]]
        for i in range(1, self.n):
            w = F.relu(self.w_bu[i - 1])
            w = w / (torch.sum(w, dim=0) + self.eps)
            x = w[0] * feats[i] + w[1] * mids[i] + w[2] * same_pool(outs[-1])
            outs.append(self.bu[i - 1](F.silu(x)))
        return outs


class Head(nn.Module):
    """Convolutions shared over the pyramid levels, batch norms of their own for every level."""

    def __init__(self, c, n_out, n_layers, n_levels, bias):
        super().__init__()
        self.convs = nn.ModuleList([SepConv(c, norm=False) for _ in range(n_layers)])
        self.bns = nn.ModuleList([nn.ModuleList([nn.BatchNorm2d(c, momentum=0.01, eps=1e-3)
                                                 for _ in range(n_layers)]) for _ in range(n_levels)])
        self.last = SepConv(c, 9 * n_out, norm=False)
        self.n_out = n_out
        nn.init.constant_(self.last.pw.bias, bias)

    def forward(self, feats):
        out = []
        for f, bns in zip(feats, self.bns):
            for conv, bn in zip(self.convs, bns):
                f = F.silu(bn(conv(f)), inplace=True)
            y = self.last(f).permute(0, 2, 3, 1)
            out.append(y.contiguous().view(y.shape[0], -1, self.n_out))
        return torch.cat(out, dim=1)


class Model(nn.Module):
    """EfficientDet: BiFPN with fast normalized fusion, per-level norms, anchors, focal and smooth-L1 loss."""

    def __init__(self, size, n_cls, c, widths, n_bifpn):
        super().__init__()
        self.n_cls = n_cls
        dims = [3, 24] + widths
        self.stages = nn.ModuleList()
        for a, b in zip(dims[:-1], dims[1:]):
            self.stages.append(nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU(True),
                                             SepConv(b), nn.SiLU(True)))
        self.lat = nn.ModuleList([nn.Conv2d(w, c, 1) for w in widths[1:]])
        self.extra = nn.Conv2d(widths[-1], c, 1)
        self.bifpn = nn.Sequential(*[BiFPN(c, 5) for _ in range(n_bifpn)])
        self.cls, self.reg = Head(c, n_cls, 3, 5, -math.log(99.0)), Head(c, 4, 3, 5, 0.0)
        boxes = []
        for lv in range(5):
            s = 2 ** (lv + 3)
            hs, ws = -(-size[0] // s), -(-size[1] // s)
            for y, x in itertools.product(range(hs), range(ws)):
                for sc, (rx, ry) in itertools.product([1, 1.26, 1.587], [(1, 1), (1.4, 0.7), (0.7, 1.4)]):
                    a = 4.0 * s * sc
                    boxes.append([(x + .5) * s, (y + .5) * s, a * rx, a * ry])
        self.register_buffer("anchors", torch.tensor(boxes))

    def targets(self, gt):
        a, eps = self.anchors, 1e-6
        lo = torch.maximum((a[:, :2] - a[:, 2:] / 2)[None, :, None], gt[:, None, :, :2])
        hi = torch.minimum((a[:, :2] + a[:, 2:] / 2)[None, :, None], gt[:, None, :, 2:])
        inter = (hi - lo).clamp(min=0).prod(-1)
        area = (gt[..., 2:] - gt[..., :2]).clamp(min=0).prod(-1)
        return (inter / ((a[:, 2] * a[:, 3])[None, :, None] + area[:, None] - inter + eps)).max(dim=2)

    def forward(self, img, gt, labels):
        x, feats = img, []
        for i, s in enumerate(self.stages):
            x = s(x)
            if i >= 2:
                feats.append(self.lat[i - 2](x))
        feats.append(same_pool(self.extra(x)))
        feats.append(same_pool(feats[-1]))
        feats = self.bifpn(feats)
        cls, reg = self.cls(feats), self.reg(feats)
        iou, who = self.targets(gt)
        pos, care = iou >= 0.5, (iou < 0.4) | (iou >= 0.5)
        lab = torch.gather(labels, 1, who)
        goal = F.one_hot(lab, self.n_cls).to(cls.dtype) * pos.unsqueeze(-1)
        p = torch.sigmoid(cls)
        alpha, pt = torch.where(goal == 1, 0.25, 0.75), torch.where(goal == 1, p, 1 - p)
        bce = F.binary_cross_entropy_with_logits(cls, goal, reduction="none")
        n_pos = pos.sum(1).clamp(min=1).to(cls.dtype)
        l_cls = ((alpha * (1 - pt) ** 1.5 * bce * care.unsqueeze(-1)).sum((1, 2)) / n_pos).mean()
        g = torch.gather(gt, 1, who.unsqueeze(-1).expand(-1, -1, 4))
        wh = (g[..., 2:] - g[..., :2]).clamp(min=1)
        t = torch.cat([((g[..., :2] + g[..., 2:]) / 2 - self.anchors[:, :2]) / self.anchors[:, 2:],
                       torch.log(wh / self.anchors[:, 2:])], dim=-1)
        d = (t - reg).abs()
        l_reg = torch.where(d <= 1 / 9, 4.5 * d.pow(2), d - 0.5 / 9) * pos.unsqueeze(-1)
        return l_cls + 50 * (l_reg.sum((1, 2)) / (4 * n_pos)).mean(), p, reg


def get_inputs():
    xy = torch.rand(3, 7, 2) * torch.tensor([120.0, 90.0])
    return [torch.randn(3, 3, 136, 200), torch.cat([xy, xy + 16 + torch.rand(3, 7, 2) * 50], -1),
            torch.randint(0, 20, (3, 7))]


def get_init_inputs():
    return [(136, 200), 20, 72, [40, 80, 144, 224], 3]
