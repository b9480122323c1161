from itertools import product

import torch
import torch.nn as nn
import torch.nn.functional as F


def fuse(w, *xs):
    w = F.relu(w) / (F.relu(w).sum() + 1e-4)
    return F.silu(sum(a * x for a, x in zip(w.unbind(0), xs)))


def norm(c):
    return nn.BatchNorm2d(c, momentum=0.01, eps=1e-3)


class SepConv(nn.Module):
    def __init__(self, c, c_out=None, bn=True):
        super().__init__()
        self.dw, self.pw = nn.Conv2d(c, c, 3, groups=c, bias=False), nn.Conv2d(c, c_out or c, 1)
        self.bn = norm(c_out or c) if bn else None

    def forward(self, x):
        x = self.pw(self.dw(F.pad(x, (1, 1, 1, 1))))
        return x if self.bn is None else self.bn(x)


def same_pool(x):
    ph, pw = [max((-(-s // 2) - 1) * 2 + 3 - s, 0) for s in x.shape[-2:]]
    return F.max_pool2d(F.pad(x, (pw // 2, pw - pw // 2, ph // 2, ph - ph // 2)), 3, 2)


class BiFPN(nn.Module):
    def __init__(self, c, n_levels):
        super().__init__()
        self.td, self.bu = [nn.ModuleList([SepConv(c) for _ in range(n_levels - 1)]) for _ in range(2)]
        self.w_td, self.w_bu = [nn.Parameter(torch.ones(n_levels - 1, k)) for k in (2, 3)]

    def forward(self, feats):
        mids = [feats[-1]]
        for i in range(len(feats) - 2, -1, -1):
            up = F.interpolate(mids[0], size=feats[i].shape[-2:], mode="nearest")
            mids.insert(0, self.td[i](fuse(self.w_td[i], feats[i], up)))
        outs = mids[:1]
        for i in range(1, len(feats)):
            outs.append(self.bu[i - 1](fuse(self.w_bu[i - 1], feats[i], mids[i], same_pool(outs[-1]))))
        return outs


class Head(nn.Module):
    def __init__(self, c, n_out, n_layers, n_levels, bias):
        super().__init__()
        self.convs = nn.ModuleList([SepConv(c, bn=False) for _ in range(n_layers)])
        self.bns = nn.ModuleList([nn.ModuleList([norm(c) for _ in range(n_layers)]) for _ in range(n_levels)])
        self.last, self.n_out = SepConv(c, 9 * n_out, bn=False), n_out
        nn.init.constant_(self.last.pw.bias, bias)

    def forward(self, feats):
        out = []
        for f, bns in zip(feats, self.bns):
            for conv, bn in zip(self.convs, bns):
                f = F.silu(bn(conv(f)), inplace=True)
            out.append(self.last(f).permute(0, 2, 3, 1).contiguous().view(f.shape[0], -1, self.n_out))
        return torch.cat(out, dim=1)


class Model(nn.Module):
    """EfficientDet: BiFPN with fast normalized fusion, per-level norms, anchors, focal and smooth-L1 loss."""

    def __init__(self, size, n_cls, c, widths, n_bifpn):
        super().__init__()
        self.n_cls, dims, self.stages = n_cls, [3, 24] + widths, nn.ModuleList()
        for a, b in zip(dims[:-1], dims[1:]):
            self.stages.append(nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), norm(b), nn.SiLU(True),
                                             SepConv(b), nn.SiLU(True)))
        self.lat = nn.ModuleList([nn.Conv2d(w, c, 1) for w in widths[1:] + widths[-1:]])
        self.bifpn = nn.Sequential(*[BiFPN(c, 5) for _ in range(n_bifpn)])
        self.cls, self.reg, boxes = Head(c, n_cls, 3, 5, -4.595), Head(c, 4, 3, 5, 0.0), []
        for lv in range(5):
            s = 2 ** (lv + 3)
            grid = product(range(-(-size[0] // s)), range(-(-size[1] // s)), [4, 5.04, 6.35], [1, 1.4, 0.7])
            boxes += [[(x + .5) * s, (y + .5) * s, s * sc * r, s * sc / r] for y, x, sc, r in grid]
        self.register_buffer("anchors", torch.tensor(boxes))

    def targets(self, gt):
        a = self.anchors
        lo = torch.maximum((a[:, :2] - a[:, 2:] / 2)[None, :, None], gt[:, None, :, :2])
        hi = torch.minimum((a[:, :2] + a[:, 2:] / 2)[None, :, None], gt[:, None, :, 2:])
        inter, area = [(y - x).clamp(min=0).prod(-1) for x, y in ((lo, hi), gt[:, None].split(2, dim=-1))]
        return (inter / (a[None, :, None, 2:].prod(-1) + area - inter + 1e-6)).max(dim=2)

    def forward(self, img, gt, labels):
        x, feats = self.stages[1](self.stages[0](img)), []
        for s, lat in zip(self.stages[2:], self.lat):
            x = s(x)
            feats.append(lat(x))
        feats.append(same_pool(self.lat[-1](x)))
        feats = self.bifpn(feats + [same_pool(feats[-1])])
        cls, reg = self.cls(feats), self.reg(feats)
        iou, who = self.targets(gt)
        pos, care = iou >= 0.5, (iou < 0.4) | (iou >= 0.5)
        goal = F.one_hot(labels.gather(1, who), self.n_cls).to(cls.dtype) * pos.unsqueeze(-1)
        p, n_pos = torch.sigmoid(cls), pos.sum(1).clamp(min=1).to(cls.dtype)
        alpha, pt = torch.where(goal == 1, 0.25, 0.75), torch.where(goal == 1, p, 1 - p)
        bce = F.binary_cross_entropy_with_logits(cls, goal, reduction="none") * care.unsqueeze(-1)
        l_cls = ((alpha * (1 - pt) ** 1.5 * bce).sum((1, 2)) / n_pos).mean()
        g = torch.gather(gt, 1, who.unsqueeze(-1).expand(-1, -1, 4))
        wh, (a_ctr, a_wh) = (g[..., 2:] - g[..., :2]).clamp(min=1), self.anchors.split(2, dim=-1)
        t = torch.cat([((g[..., :2] + g[..., 2:]) / 2 - a_ctr) / a_wh, torch.log(wh / a_wh)], dim=-1)
        l_reg = F.smooth_l1_loss(reg, t, reduction="none", beta=1 / 9) * pos.unsqueeze(-1)
        return l_cls + 50 * (l_reg.sum((1, 2)) / (4 * n_pos)).mean(), p, reg


def get_inputs():
    xy, wh = torch.rand(3, 7, 2) * 90, 16 + torch.rand(3, 7, 2) * 50
    return [torch.randn(3, 3, 136, 200), torch.cat([xy, xy + wh], -1), torch.randint(0, 20, (3, 7))]


def get_init_inputs():
    return [(136, 200), 20, 104, [40, 80, 160, 272], 3]
