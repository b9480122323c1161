import torch
import torch.nn as nn
import torch.nn.functional as F


class ASPP(nn.Module):
    def __init__(self, i, o, rates):
        super().__init__()
        self.pw = nn.Conv2d(i, o, 1, bias=False)
        self.atrous = nn.ModuleList([nn.Conv2d(i, o, 3, padding=r, dilation=r, bias=False) for r in rates])
        self.norms = nn.ModuleList([nn.GroupNorm(4, o) for _ in range(len(rates) + 1)])
        self.pool = nn.Conv2d(i, o, 1)
        self.fuse = nn.Conv2d(o * (len(rates) + 2), o, 1)

    def forward(self, x):
        feats = [F.relu(self.norms[0](self.pw(x)))]
        for conv, norm in zip(self.atrous, self.norms[1:]):
            feats.append(F.relu(norm(conv(x))))
        g = F.relu(self.pool(F.adaptive_avg_pool2d(x, 1)))
        feats.append(F.interpolate(g, size=x.shape[-2:], mode="bilinear", align_corners=False))
        return self.fuse(torch.cat(feats, dim=1))


class Model(nn.Module):
    """ASPP on the top level, then lateral 1x1, nearest upsampling and weighted BiFPN-style merges."""

    def __init__(self, in_chs, ch, rates):
        super().__init__()
        self.laterals = nn.ModuleList([nn.Conv2d(c, ch, 1) for c in in_chs[:-1]])
        self.top = ASPP(in_chs[-1], ch, rates)
        self.dw = nn.ModuleList([nn.Conv2d(ch, ch, 3, padding=1, groups=ch, bias=False) for _ in in_chs])
        self.pw = nn.ModuleList([nn.Conv2d(ch, ch, 1) for _ in in_chs])
        self.merge_w = nn.Parameter(torch.ones(len(in_chs) - 1, 2))

    def forward(self, c2, c3, c4):
        feats = [lat(c) for lat, c in zip(self.laterals, (c2, c3))] + [self.top(c4)]
        w = F.relu(self.merge_w)
        w = w / (w.sum(dim=1, keepdim=True) + 1e-4)
        merged = [None] * len(feats)
        merged[-1] = feats[-1]
        for i in range(len(feats) - 2, -1, -1):
            up = F.interpolate(merged[i + 1], size=feats[i].shape[-2:], mode="nearest")
            m = w[i, 0] * feats[i] + w[i, 1] * up
            merged[i] = m * torch.sigmoid(m)
        return tuple(pw(dw(m)) for m, dw, pw in zip(merged, self.dw, self.pw))


def get_inputs():
    return [torch.randn(1, 24, 50, 50), torch.randn(1, 48, 25, 25), torch.randn(1, 90, 13, 13)]


def get_init_inputs():
    return [[24, 48, 90], 36, [1, 2, 4]]
