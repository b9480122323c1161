import torch
import torch.nn as nn
import torch.nn.functional as F


class Stage(nn.Module):
    def __init__(self, i, o, mode, k=3, s=1, d=1, p=1):
        super().__init__()
        self.conv = nn.Conv2d(i, o, k, stride=s, dilation=d, padding=p, padding_mode=mode)
        self.act = nn.PReLU(o)

    def forward(self, x):
        return self.act(self.conv(x))


class Model(nn.Module):
    """Everything about convolutions and pooling that has a non default option somewhere."""

    def __init__(self, cin=3, w=12):
        super().__init__()
        self.s1 = Stage(cin, w, "reflect", k=(5, 3), s=(2, 1), p=(2, 1))
        self.s2 = Stage(w, w, "circular", k=3, d=(2, 3), p=(2, 3))
        self.s3 = Stage(w, 2 * w, "replicate", k=(1, 4), s=(1, 3), p=(0, 2))
        self.same = nn.Conv2d(2 * w, 2 * w, (2, 5), padding="same", groups=4, bias=False)
        self.gn = nn.GroupNorm(3, 2 * w)
        self.up = nn.ConvTranspose2d(2 * w, w, (3, 4), stride=(2, 3), padding=1, output_padding=(1, 0), dilation=(1, 2))
        self.inorm = nn.InstanceNorm2d(w, affine=True, track_running_stats=True)
        self.maxp = nn.MaxPool2d(3, stride=2, padding=1, dilation=1, ceil_mode=True, return_indices=True)
        self.unpool = nn.MaxUnpool2d(3, stride=2, padding=1)
        self.avgp = nn.AvgPool2d((3, 2), stride=(2, 3), padding=(1, 0), ceil_mode=True, count_include_pad=False)
        self.lp = nn.LPPool2d(2, (2, 3), stride=2, ceil_mode=True)
        self.lrn = nn.LocalResponseNorm(4)
        self.c3 = nn.Conv3d(1, 4, (2, 3, 3), stride=(1, 2, 2), padding=(1, 0, 1))
        self.c1 = nn.ConvTranspose1d(w, 5, 4, stride=3, groups=1)
        self.fc = nn.Linear(w * 5 * 3, 10)

    def forward(self, x):
        x = F.pad(x, (1, 2, 3, 0), mode="constant", value=0.1)
        a = self.s1(x)
        b = self.s2(a)
        b += a
        c = self.s3(F.hardtanh(b, -2, 2))
        c = F.relu6(self.gn(self.same(c) + c))
        d = self.up(c)
        d = self.inorm(d)
        if d.shape[-2:] != b.shape[-2:]:
            d = F.interpolate(d, size=b.shape[-2:], mode="bilinear", align_corners=True)
        e = torch.maximum(d, b) - 0.1 * torch.minimum(d, b)
        m, idx = self.maxp(e)
        un = self.unpool(m, idx, output_size=e.size())
        av = self.avgp(e)
        lp = self.lp(e.abs() + 0.1)
        ad = F.adaptive_avg_pool2d(self.lrn(e), (5, 3))
        am = F.adaptive_max_pool2d(un, (4, 7))
        v = self.c3(e[:, None])                               # channels as depth
        v = F.avg_pool3d(v, (2, 2, 3), ceil_mode=True)
        t = self.c1(ad.flatten(2)[:, :, ::2])
        t = F.max_pool1d(t, 4, stride=3, dilation=2)
        area = F.interpolate(av, scale_factor=(1.7, 0.55), mode="area")
        near = F.interpolate(lp, size=(7, 11), mode="nearest-exact")
        tri = F.interpolate(v, size=(3, 5, 4), mode="trilinear", align_corners=False)
        out = self.fc(ad.reshape(ad.shape[0], -1))
        return out, am, area, near, tri, t, idx % 7


def get_inputs():
    return [torch.randn(2, 3, 37, 29)]


def get_init_inputs():
    return [3, 12]
