import torch
import torch.nn as nn


class Model(nn.Module):
    """Negative floor, trunc and remainder divisions, wrapping uint8, bool sums, int/float compares."""

    def __init__(self, n):
        super().__init__()
        self.g = nn.Parameter(torch.randn(n))

    def forward(self, x, a, b, c):
        nz = torch.where(a == 0, 7, a)
        bi = b.to(torch.int32) - 128
        fl = torch.div(bi, nz % 11 - 20, rounding_mode="floor")
        tr = torch.div(bi, nz % 11 - 20, rounding_mode="trunc")
        rm, fm = a % -7, torch.fmod(a, 7)
        tru = bi / nz
        wr = (b - 200) + (b << 1) * 3
        neg = (-b) ^ ~b
        pw = (b % 5) ** 3 + (a & 15) ** 2
        gt = a > x * 300
        le = b <= (x * 40).abs()
        eq = (x * 8).round() == (a % 9)
        bs = gt + le
        xo = (gt ^ le) & ~eq
        q = (gt.sum(0) + le.sum(0) * 2) // 3 - xo.cumsum(0)[-1] % 5
        mx = torch.maximum(a, x * 500)
        sel = torch.where(c, a, x)
        mean = torch.where(xo, sel, 0).sum(1) / xo.sum(1).clamp(min=1)
        xi = (x * 100).to(torch.int64)
        tw = torch.where(xi < 0, -((-xi) >> 2), xi >> 2) - (xi >> 2)
        xf = torch.remainder(x * 7, -2.5) + torch.fmod(x * 7, 2.5)
        fd = torch.floor_divide(x.detach() * 9, 2) * c
        sg = torch.sign(a) * x.abs() + (a.abs() - 3).clamp(min=0).to(x.dtype).sqrt() * eq
        out = self.g * (fl - tr) + x * bs + tru * (rm - fm) + xf - fd * le + sg / (1 + pw)
        out = out + (wr > 127) * torch.sigmoid(x * (b.to(x.dtype) / 255)) - (neg == 255) * mx * 1e-3
        cnt = (x > 0).to(torch.uint8).sum(0, dtype=torch.uint8) - b[0]
        al = (gt | c).all(1).to(torch.int32) - (le & eq).any(1).to(torch.int32)
        return out, mean, wr, q, tw + pw, cnt, al, bs.to(torch.uint8) * 3 - eq.to(torch.int8)


def get_inputs():
    a = torch.randint(-1000, 1000, (61, 4099), dtype=torch.int32)
    return [torch.randn(61, 4099), a, torch.randint(0, 256, (61, 4099)).byte(), torch.rand(61, 1) < 0.5]


def get_init_inputs():
    return [4099]
