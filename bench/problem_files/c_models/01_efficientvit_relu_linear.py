import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvLayer(nn.Module):
    def __init__(self, cin, cout, k=3, stride=1, groups=1, norm=True, act="hswish", bias=False):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=bias)
        self.norm = nn.BatchNorm2d(cout) if norm else None
        self.act = {"hswish": nn.Hardswish(), "relu6": nn.ReLU6(), None: None}[act]

    def forward(self, x):
        x = self.conv(x)
        if self.norm:
            x = self.norm(x)
        if self.act:
            x = self.act(x)
        return x


class DSConv(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.depth_conv = ConvLayer(cin, cin, 3, stride, groups=cin, act="relu6")
        self.point_conv = ConvLayer(cin, cout, 1, act=None)

    def forward(self, x):
        return self.point_conv(self.depth_conv(x))


class MBConv(nn.Module):
    def __init__(self, cin, cout, stride=1, expand=4):
        super().__init__()
        mid = cin * expand
        self.inverted_conv = ConvLayer(cin, mid, 1, norm=False, bias=True)
        self.depth_conv = ConvLayer(mid, mid, 3, stride, groups=mid, norm=False, bias=True)
        self.point_conv = ConvLayer(mid, cout, 1, act=None)

    def forward(self, x):
        return self.point_conv(self.depth_conv(self.inverted_conv(x)))


class LiteMLA(nn.Module):
    def __init__(self, channels, dim=16, scales=(5,), eps=1e-5):
        super().__init__()
        self.eps = eps
        self.dim = dim
        heads = channels // dim
        total = heads * dim
        self.qkv = nn.Conv2d(channels, 3 * total, 1, bias=False)
        self.aggreg = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(3 * total, 3 * total, s, padding=s // 2, groups=3 * total, bias=False),
                nn.Conv2d(3 * total, 3 * total, 1, groups=3 * heads, bias=False),
            )
            for s in scales
        )
        self.proj = ConvLayer(total * (1 + len(scales)), channels, 1, act=None)

    def forward(self, x):
        B, _, H, W = x.shape
        qkv = self.qkv(x)
        multi = [qkv]
        for op in self.aggreg:
            multi.append(op(qkv))
        multi = torch.cat(multi, dim=1)
        multi = multi.reshape(B, -1, 3 * self.dim, H * W).transpose(-1, -2)
        q, k, v = multi[..., : self.dim], multi[..., self.dim : 2 * self.dim], multi[..., 2 * self.dim :]
        q = F.relu(q)
        k = F.relu(k)
        # the extra column of ones yields the normaliser in the same matmul
        v = F.pad(v, (0, 1), mode="constant", value=1)
        kv = k.transpose(-1, -2) @ v
        out = q @ kv
        out = out[..., :-1] / (out[..., -1:] + self.eps)
        out = out.transpose(-1, -2).reshape(B, -1, H, W)
        return self.proj(out)


class Model(nn.Module):
    """EfficientViT classifier: DS/MB convs and multi-scale ReLU linear attention."""

    def __init__(self, widths, head_dim, num_classes):
        super().__init__()
        w0, w1, w2, w3 = widths
        self.stem = nn.Sequential(ConvLayer(3, w0, 3, 2))
        self.stem_ds = DSConv(w0, w0)
        self.stage1 = nn.ModuleList([MBConv(w0, w1, 2), MBConv(w1, w1)])
        self.down2 = MBConv(w1, w2, 2)
        self.ctx2 = LiteMLA(w2, head_dim)
        self.loc2 = MBConv(w2, w2)
        self.down3 = MBConv(w2, w3, 2)
        self.ctx3 = nn.ModuleList([LiteMLA(w3, head_dim, (3, 5)) for _ in range(2)])
        self.loc3 = nn.ModuleList([MBConv(w3, w3) for _ in range(2)])
        self.head = nn.Sequential(
            ConvLayer(w3, 384, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(384, 256, bias=False),
            nn.LayerNorm(256), nn.Hardswish(), nn.Linear(256, num_classes),
        )

    def forward(self, x):
        x = self.stem(x)
        x = x + self.stem_ds(x)
        x = self.stage1[0](x)
        x = x + self.stage1[1](x)
        x = self.down2(x)
        x = x + self.ctx2(x)
        x = x + self.loc2(x)
        x = self.down3(x)
        for c, l in zip(self.ctx3, self.loc3):
            x = x + c(x)
            x = x + l(x)
        return self.head(x)


def get_inputs():
    return [torch.randn(6, 3, 112, 112)]


def get_init_inputs():
    return [(16, 32, 64, 96), 16, 100]
