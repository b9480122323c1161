import torch
import torch.nn as nn
import torch.nn.functional as F


class ABN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bn = nn.BatchNorm2d(c)

    def forward(self, x):
        return F.leaky_relu_(self.bn(x), 0.01)


class Bottleneck(nn.Module):
    def __init__(self, a, c, stride=1, dilation=1, multi_grid=1):
        super().__init__()
        d = dilation * multi_grid
        self.c1, self.b1 = nn.Conv2d(a, c, 1, bias=False), nn.BatchNorm2d(c)
        self.c2, self.b2 = nn.Conv2d(c, c, 3, stride, d, d, bias=False), nn.BatchNorm2d(c)
        self.c3, self.b3 = nn.Conv2d(c, c * 4, 1, bias=False), nn.BatchNorm2d(c * 4)
        nn.init.constant_(self.b3.weight, 0.2)
        self.relu, self.down = nn.ReLU(inplace=True), None
        if stride != 1 or a != c * 4:
            self.down = nn.Sequential(nn.Conv2d(a, c * 4, 1, stride, bias=False), nn.BatchNorm2d(c * 4))

    def forward(self, x):
        out = self.relu(self.b1(self.c1(x)))
        out = self.b3(self.c3(self.relu(self.b2(self.c2(out)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class CrissCross(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q, self.k, self.v = [nn.Conv2d(c, n, 1) for n in (c // 8, c // 8, c)]
        self.gamma = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, x):
        b, _, h, w = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        col = lambda y: y.permute(0, 3, 1, 2).contiguous().view(b * w, -1, h)
        row = lambda y: y.permute(0, 2, 1, 3).contiguous().view(b * h, -1, w)
        self_mask = torch.diag(torch.full((h,), -1e9, device=x.device, dtype=x.dtype), 0)
        e_h = torch.bmm(col(q).permute(0, 2, 1), col(k)) + self_mask
        e_h = e_h.view(b, w, h, h).permute(0, 2, 1, 3)
        e_w = torch.bmm(row(q).permute(0, 2, 1), row(k)).view(b, h, w, w)
        a = torch.softmax(torch.cat([e_h, e_w], 3), dim=3)
        a_h = a[..., :h].permute(0, 2, 1, 3).contiguous().view(b * w, h, h)
        a_w = a[..., h:].contiguous().view(b * h, w, w)
        o_h = torch.bmm(col(v), a_h.permute(0, 2, 1)).view(b, w, -1, h).permute(0, 2, 3, 1)
        o_w = torch.bmm(row(v), a_w.permute(0, 2, 1)).view(b, h, -1, w).permute(0, 2, 1, 3)
        return self.gamma * (o_h + o_w) + x


class RCCA(nn.Module):
    def __init__(self, a, c, n_cls, recurrence):
        super().__init__()
        self.r = recurrence
        self.conva = nn.Sequential(nn.Conv2d(a, c, 3, padding=1, bias=False), ABN(c))
        self.cca = CrissCross(c)
        self.convb = nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), ABN(c))
        self.out = nn.Sequential(nn.Conv2d(a + c, c, 3, padding=1, bias=False), ABN(c),
                                 nn.Conv2d(c, n_cls, 1))

    def forward(self, x):
        y = self.conva(x)
        for _ in range(self.r):
            y = self.cca(y)
        return self.out(torch.cat([x, self.convb(y)], 1)), y


class Model(nn.Module):
    """CCNet: dilated ResNet, recurrent criss-cross attention, auxiliary head, OHEM and affinity loss."""

    def __init__(self, n_cls, width, layers, c, keep):
        super().__init__()
        self.keep, w = keep, width
        stem = [(3, w // 2, 2), (w // 2, w // 2, 1), (w // 2, w, 1)]
        stem = [m for a, b, s in stem for m in (nn.Conv2d(a, b, 3, s, 1, bias=False), ABN(b))]
        self.stem = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1, ceil_mode=True))
        self.layers, a, cfg = nn.ModuleList(), w, [(w, 1, 1), (2 * w, 2, 1), (4 * w, 1, 2), (8 * w, 1, 4)]
        for (p, s, d), n in zip(cfg, layers):
            self.layers.append(nn.Sequential(Bottleneck(a, p, s, d), *[Bottleneck(4 * p, p, 1, d, g)
                                                                       for g in range(1, n)]))
            a = 4 * p
        self.dsn = nn.Sequential(nn.Conv2d(a // 2, c, 3, padding=1), ABN(c), nn.Conv2d(c, n_cls, 1))
        self.head = RCCA(a, c, n_cls, 2)
        self.register_buffer("cw", torch.linspace(0.8, 1.2, n_cls))

    def ohem(self, logits, target):
        loss = F.cross_entropy(logits, target, weight=self.cw, ignore_index=255, reduction="none")
        return torch.topk(loss.flatten(), int(self.keep * loss.numel()), sorted=False)[0].mean()

    def forward(self, x, target):
        size = x.shape[-2:]
        x = self.layers[1](self.layers[0](self.stem(x)))
        mid = self.layers[2](x)
        out, feat = self.head(self.layers[3](mid))
        up = lambda y: F.interpolate(y, size=size, mode="bilinear", align_corners=True)
        out, aux = up(out), up(self.dsn(mid))
        small = F.interpolate(target.unsqueeze(1).to(feat.dtype), size=feat.shape[-2:], mode="nearest")
        valid = (small != 255).to(feat.dtype).flatten(1)
        f = F.normalize(feat.flatten(2), dim=1, eps=1e-2)
        small, pair = small.flatten(1), valid.unsqueeze(1) * valid.unsqueeze(2)
        same = (small.unsqueeze(1) == small.unsqueeze(2)).to(feat.dtype)
        cos = torch.bmm(f.transpose(1, 2), f)
        aff = torch.lerp(F.relu(cos - 0.5), 1 - cos, same).mul(pair).mean((1, 2))
        aff = (aff / pair.mean((1, 2)).clamp(min=1e-3)).mean()
        return self.ohem(out, target) + 0.4 * self.ohem(aux, target) + 0.1 * aff, out


def get_inputs():
    t = torch.randint(0, 19, (3, 97, 129))
    return [torch.randn(3, 3, 97, 129), torch.where(torch.rand(3, 97, 129) < 0.1, 255, t)]


def get_init_inputs():
    return [19, 24, [2, 2, 2, 2], 96, 0.7]
