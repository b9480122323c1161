import torch
import torch.nn as nn


class Model(nn.Module):
    """RWKV-4 block: time mixing with a numerically stable WKV loop, then channel mixing."""

    def __init__(self, d, ffn):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        r = torch.arange(d) / d
        self.mk = nn.Parameter(r.clone())
        self.mv = nn.Parameter(r + 0.2)
        self.mr = nn.Parameter(0.5 * r)
        self.decay = nn.Parameter(-5 + 8 * r ** 1.3)
        self.first = nn.Parameter(torch.ones(d) * -1.2)
        self.key = nn.Linear(d, d, bias=False)
        self.value = nn.Linear(d, d, bias=False)
        self.rec = nn.Linear(d, d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.cmk = nn.Parameter(r.clone())
        self.cmr = nn.Parameter(r.clone())
        self.ckey = nn.Linear(d, ffn, bias=False)
        self.cval = nn.Linear(ffn, d, bias=False)
        self.crec = nn.Linear(d, d, bias=False)

    @staticmethod
    def shift(x):
        return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)

    def wkv(self, k, v):
        w = -torch.exp(self.decay)
        u = self.first
        aa = torch.zeros_like(k[:, 0])
        bb = torch.zeros_like(k[:, 0])
        pp = torch.full_like(k[:, 0], -1e38)
        ys = []
        for t in range(k.shape[1]):
            kt, vt = k[:, t], v[:, t]
            ww = u + kt
            p = torch.maximum(pp, ww)
            e1, e2 = torch.exp(pp - p), torch.exp(ww - p)
            ys.append((e1 * aa + e2 * vt) / (e1 * bb + e2))
            ww = pp + w
            p = torch.maximum(ww, kt)
            e1, e2 = torch.exp(ww - p), torch.exp(kt - p)
            aa = e1 * aa + e2 * vt
            bb = e1 * bb + e2
            pp = p
        return torch.stack(ys, dim=1)

    def forward(self, x):
        y = self.ln1(x)
        s = self.shift(y)
        k = self.key(y * self.mk + s * (1 - self.mk))
        v = self.value(y * self.mv + s * (1 - self.mv))
        r = torch.sigmoid(self.rec(y * self.mr + s * (1 - self.mr)))
        x = x + self.out(r * self.wkv(k, v))
        y = self.ln2(x)
        s = self.shift(y)
        k = torch.square(torch.relu(self.ckey(torch.lerp(s, y, self.cmk))))
        r = torch.sigmoid(self.crec(torch.lerp(s, y, self.cmr)))
        return x + r * self.cval(k)


def get_inputs():
    return [torch.randn(3, 50, 94)]


def get_init_inputs():
    return [94, 250]
