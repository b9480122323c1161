import torch
import torch.nn as nn


class Model(nn.Module):
    """Population counts, reversals, Gray and Morton codes, hashes; packed sign projections compared."""

    def __init__(self, d, bits):
        super().__init__()
        self.proj = nn.Parameter(torch.randn(d, bits))

    def pop(self, v):
        v = v - ((v >> 1) & 0x55555555)
        v = (v & 0x33333333) + ((v >> 2) & 0x33333333)
        v = (v + (v >> 4)) & 0x0F0F0F0F
        return ((v * 0x01010101) & 0xFFFFFFFF) >> 24

    def spread(self, v):
        for s, m in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
            v = (v | (v << s)) & m
        return v

    def forward(self, a, b, f):
        a, b = a.long() & 0xFFFFFFFF, b.long()
        r = a
        for s, m in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
            r = ((r >> s) & m) | ((r & m) << s)
        gray = a ^ (a >> 1)
        par = self.pop(gray) & 1
        sm = a
        for s in (1, 2, 4, 8, 16):
            sm = sm | (sm >> s)
        lz = 32 - self.pop(sm)
        low = self.pop((a & -a) - 1)
        mort = self.spread(a & 0xFFFF) | (self.spread(b & 0xFFFF) << 1)
        h = a ^ (a >> 16)
        h = (h * 0x45D9F3B) & 0xFFFFFFFF
        h = (h ^ (h >> 15)) * -0x61C88647
        h = (h ^ (h >> 33)) & 0x7FFFFFFF
        same = ~(a ^ b.roll(1, 1)) & 0xFFFFFFFF
        sh = torch.arange(self.proj.shape[1], device=f.device)
        sig = ((f @ self.proj > 0).long() << sh).sum(-1)
        ham = self.pop(sig[:, None] ^ sig[None, :])
        near = ham.masked_fill(torch.eye(f.shape[0], dtype=torch.bool, device=f.device), 99).amin(1)
        est = torch.cos(ham[:17] * (torch.pi / sh.shape[0]))
        return r ^ gray, par + 2 * lz + 128 * low, mort, h % 65521, self.pop(same).to(torch.uint8), near, est


def get_inputs():
    i = torch.iinfo(torch.int32)
    a = torch.randint(i.min, i.max, (61, 6007), dtype=torch.int32)
    return [a, torch.randint(0, 1 << 16, (61, 6007)), torch.randn(1021, 37)]


def get_init_inputs():
    return [37, 31]
