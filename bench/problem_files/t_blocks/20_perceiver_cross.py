import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attn(nn.Module):
    def __init__(self, qd, kd, heads, hd):
        super().__init__()
        self.heads = heads
        self.nq = nn.LayerNorm(qd)
        self.nk = nn.LayerNorm(kd)
        self.q = nn.Linear(qd, heads * hd, bias=False)
        self.kv = nn.Linear(kd, 2 * heads * hd, bias=False)
        self.o = nn.Linear(heads * hd, qd)

    def forward(self, x, ctx):
        q = self.q(self.nq(x))
        k, v = self.kv(self.nk(ctx)).chunk(2, dim=-1)
        b, n, _ = q.shape

        def fold(t):
            return t.reshape(b, t.shape[1], self.heads, -1).transpose(1, 2).reshape(b * self.heads, t.shape[1], -1)

        q, k, v = fold(q), fold(k), fold(v)
        s = torch.baddbmm(q.new_zeros(1), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
        o = torch.bmm(s.softmax(-1), v)
        o = o.view(b, self.heads, n, -1).transpose(1, 2).reshape(b, n, -1)
        return x + self.o(o)


class GEGLU(nn.Module):
    def __init__(self, d, mult):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.a = nn.Linear(d, d * mult * 2)
        self.b = nn.Linear(d * mult, d)

    def forward(self, x):
        u, g = self.a(self.n(x)).chunk(2, -1)
        return x + self.b(u * F.gelu(g))


class Model(nn.Module):
    """Perceiver: Fourier-encoded image bytes cross-attended by latents, weights shared over depth."""

    def __init__(self, in_ch, bands, latents, d, depth):
        super().__init__()
        self.bands, self.depth = bands, depth
        kd = in_ch + 2 * (2 * bands + 1)
        self.lat = nn.Parameter(torch.randn(latents, d) * 0.02)
        self.cross = Attn(d, kd, 1, 31)
        self.ff1 = GEGLU(d, 2)
        self.selfa = Attn(d, d, 4, 12)
        self.ff2 = GEGLU(d, 2)

    def forward(self, img):
        b, h, w, c = img.shape
        ys = torch.linspace(-1, 1, h, device=img.device)
        xs = torch.linspace(-1, 1, w, device=img.device)
        pos = torch.stack(torch.meshgrid(ys, xs, indexing="ij"), -1).unsqueeze(-1)
        f = torch.linspace(1.0, 10.0, self.bands, device=img.device) * math.pi
        p = pos * f
        enc = torch.cat([p.sin(), p.cos(), pos], -1).flatten(2)
        ctx = torch.cat([img, enc.expand(b, -1, -1, -1)], -1).flatten(1, 2)
        z = self.lat.expand(b, -1, -1)
        for _ in range(self.depth):
            z = self.ff1(self.cross(z, ctx))
            z = self.ff2(self.selfa(z, z))
        return z.mean(1)


def get_inputs():
    return [torch.randn(2, 26, 25, 3)]


def get_init_inputs():
    return [3, 6, 43, 60, 3]
