import torch
import torch.nn as nn
import torch.nn.functional as F


class WSConv(nn.Conv2d):
    def forward(self, x):
        w = self.weight
        mu = w.mean(dim=(1, 2, 3), keepdim=True)
        var = w.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        w = (w - mu) * torch.rsqrt(var + 1e-5)
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


class BlurPool(nn.Module):
    def __init__(self, ch):
        super().__init__()
        a = torch.tensor([1.0, 3.0, 3.0, 1.0])
        k = a[:, None] * a[None, :]
        self.register_buffer("k", (k / k.sum()).repeat(ch, 1, 1, 1))
        self.ch = ch

    def forward(self, x):
        x = F.pad(x, (1, 2, 1, 2), mode="reflect")
        return F.conv2d(x, self.k, stride=2, groups=self.ch)


class Double(nn.Module):
    def __init__(self, i, o, groups):
        super().__init__()
        self.a = WSConv(i, o, 3, padding=1)
        self.na = nn.GroupNorm(groups, o)
        self.b = WSConv(o, o, 3, padding=1)
        self.nb = nn.GroupNorm(groups, o)

    def forward(self, x):
        x = F.silu(self.na(self.a(x)))
        return F.silu(self.nb(self.b(x)))


class Model(nn.Module):
    """Two-level UNet with weight standardised convs and anti-aliased downsampling."""

    def __init__(self, in_ch, base, out_ch):
        super().__init__()
        self.e1 = Double(in_ch, base, 3)
        self.p1 = BlurPool(base)
        self.e2 = Double(base, base * 2, 3)
        self.p2 = BlurPool(base * 2)
        self.mid = Double(base * 2, base * 3, 3)
        self.d2 = Double(base * 5, base * 2, 3)
        self.d1 = Double(base * 3, base, 3)
        self.out = nn.Conv2d(base, out_ch, 1)

    def forward(self, x):
        s1 = self.e1(x)
        s2 = self.e2(self.p1(s1))
        m = self.mid(self.p2(s2))
        u = F.interpolate(m, size=s2.shape[-2:], mode="bilinear", align_corners=True)
        u = self.d2(torch.cat([u, s2], 1))
        u = F.interpolate(u, size=s1.shape[-2:], mode="bilinear", align_corners=True)
        u = self.d1(torch.cat([u, s1], 1))
        return self.out(u)


def get_inputs():
    return [torch.randn(1, 4, 50, 46)]


def get_init_inputs():
    return [4, 15, 2]
