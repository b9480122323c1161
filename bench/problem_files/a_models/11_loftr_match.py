import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_bn(a, b, k, s, act=True):
    return nn.Sequential(nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b), *[nn.ReLU(True)] * act)


class Res(nn.Module):
    def __init__(self, a, b, s):
        super().__init__()
        self.body = nn.Sequential(conv_bn(a, b, 3, s), conv_bn(b, b, 3, 1, False))
        self.down = None if s == 1 and a == b else conv_bn(a, b, 1, s, False)

    def forward(self, x):
        return F.relu(self.body(x) + (x if self.down is None else self.down(x)))


class ResNetFPN(nn.Module):
    def __init__(self, dims):
        super().__init__()
        a, b, c = dims
        self.stem, self.l1, self.l2, self.l3 = conv_bn(1, a, 7, 2), Res(a, a, 1), Res(a, b, 2), Res(b, c, 2)
        self.o3, self.o2, self.o1 = [nn.Conv2d(i, j, 1, bias=False) for i, j in ((c, c), (b, c), (a, b))]
        self.f2, self.f1 = [nn.Sequential(conv_bn(i, i, 3, 1, False), nn.LeakyReLU(inplace=True),
                                          nn.Conv2d(i, j, 3, 1, 1, bias=False)) for i, j in ((c, b), (b, a))]

    def forward(self, x):
        x1 = self.l1(self.stem(x))
        x2 = self.l2(x1)
        x3 = self.o3(self.l3(x2))
        up = lambda y: F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=True)
        return x3, self.f1(self.o1(x1) + up(self.f2(self.o2(x2) + up(x3))))


class EncoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.merge = [nn.Linear(d, d, bias=False) for _ in range(4)]
        self.fc1, self.fc2 = nn.Linear(2 * d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, src):
        b, s = src.shape[:2]
        q = F.elu(self.q(x).view(b, -1, self.h, x.shape[-1] // self.h)) + 1
        k = F.elu(self.k(src).view(b, s, self.h, -1)) + 1
        v = self.v(src).view(b, s, self.h, -1) / s
        kv = torch.einsum("nshd,nshv->nhdv", k, v)
        z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + 1e-6)
        msg = torch.einsum("nlhd,nhdv,nlh->nlhv", q, kv, z) * s
        msg = self.n1(self.merge(msg.flatten(2)))
        return x + self.n2(self.fc2(F.relu_(self.fc1(torch.cat([x, msg], dim=2)))))


class LocalFeatureTransformer(nn.Module):
    def __init__(self, d, heads, names):
        super().__init__()
        self.names, self.layers = names, nn.ModuleList([EncoderLayer(d, heads) for _ in names])

    def forward(self, a, b):
        for name, layer in zip(self.names, self.layers):
            a = layer(a, a if name == "self" else b)
            b = layer(b, b if name == "self" else a)
        return a, b


class Model(nn.Module):
    """LoFTR: coarse dual-softmax matching and fine window expectation, focal and std-weighted losses."""

    def __init__(self, dims, heads, W, max_hw):
        super().__init__()
        self.W, self.backbone, df, dc = W, ResNetFPN(dims), dims[0], dims[2]
        div = 10000.0 ** (-torch.arange(0, dc // 2, 2).float() / (dc // 2))[:, None, None]
        x, y = [torch.ones(max_hw).cumsum(i) * div for i in (1, 0)]
        pe = torch.stack([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).flatten(0, 1)
        self.register_buffer("pe", pe.unsqueeze(0), persistent=False)
        self.coarse = LocalFeatureTransformer(dc, heads, ["self", "cross"] * 3)
        self.down, self.merge = nn.Linear(dc, df), nn.Linear(2 * df, df)
        self.fine = LocalFeatureTransformer(df, heads, ["self", "cross"])
        g = torch.linspace(-1, 1, W)
        self.register_buffer("grid", torch.stack(torch.meshgrid(g, g, indexing="xy"), -1).view(1, -1, 2))

    def forward(self, img0, img1, i_ids, j_ids, offset):
        b, m = i_ids.shape
        c, f = self.backbone(torch.cat([img0, img1], dim=0))
        c = c + self.pe[:, :, :c.shape[2], :c.shape[3]]
        c0, c1 = self.coarse(*c.flatten(2).transpose(1, 2).split(b))
        sim = torch.einsum("nlc,nsc->nls", c0 / c0.shape[-1] ** .5, c1 / c0.shape[-1] ** .5) / 0.1
        conf = F.softmax(sim, 1) * F.softmax(sim, 2)
        rows = torch.arange(b, device=conf.device)[:, None]
        gt = torch.zeros_like(conf, dtype=torch.bool)
        gt[rows, i_ids, j_ids] = True
        p = conf.clamp(1e-6, 1 - 1e-6)
        focal = torch.where(gt, -0.25 * (1 - p).pow(2.0) * p.log(), -0.25 * p.pow(2.0) * (1 - p).log())
        l_c = (focal * gt).sum() / gt.sum() + (focal * ~gt).sum() / (~gt).sum()
        u = F.unfold(f, kernel_size=(self.W, self.W), stride=4, padding=self.W // 2)
        u = u.view(2, b, f.shape[1], self.W ** 2, -1).permute(0, 1, 4, 3, 2)
        wins = torch.stack([u[0][rows, i_ids], u[1][rows, j_ids]]).flatten(1, 2)
        cw = self.down(torch.stack([c0[rows, i_ids], c1[rows, j_ids]]).flatten(1, 2))
        cw = cw.unsqueeze(2).expand(-1, -1, self.W ** 2, -1)
        w0, w1 = self.fine(*self.merge(torch.cat([wins, cw], -1)).unbind(0))
        heat = torch.einsum("mc,mrc->mr", w0[:, self.W ** 2 // 2], w1) / w0.shape[-1] ** .5
        heat = torch.softmax(heat, dim=1)
        xy = (heat.unsqueeze(-1) * self.grid).sum(1)
        var = (self.grid ** 2 * heat.unsqueeze(-1)).sum(1) - xy ** 2
        std = torch.sqrt(var.clamp(min=1e-6)).sum(-1)
        inv = 1.0 / std.detach().clamp(min=1e-4)
        l_f = ((offset.flatten(0, 1) - xy).pow(2).sum(-1) * (inv / inv.mean())).mean()
        return l_c + l_f, conf, torch.cat([xy, std.unsqueeze(1)], -1).view(b, m, 3)


def get_inputs():
    return [torch.rand(2, 1, 104, 136), torch.rand(2, 1, 104, 136), torch.randint(0, 221, (2, 37)),
            torch.randint(0, 221, (2, 37)), torch.rand(2, 37, 2) - 0.5]


def get_init_inputs():
    return [[64, 96, 192], 8, 5, (32, 32)]
