import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d, ffn, seq, tiny):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, ffn)
        self.sgu_norm = nn.LayerNorm(ffn // 2)
        self.w = nn.Parameter(torch.randn(seq, seq) * 1e-2)
        self.b = nn.Parameter(torch.ones(seq))
        self.down = nn.Linear(ffn // 2, d)
        self.tq = nn.Linear(d, 3 * tiny)
        self.tiny_out = nn.Linear(tiny, ffn // 2)
        self.tiny = tiny

    def forward(self, x):
        n = x.shape[1]
        y = self.norm(x)
        q, k, v = self.tq(y).chunk(3, -1)
        a = torch.softmax(torch.bmm(q, k.mT) * self.tiny ** -0.5, -1)
        t = self.tiny_out(torch.bmm(a, v))
        u, g = F.gelu(self.up(y)).chunk(2, dim=-1)
        g = self.sgu_norm(g)
        g = torch.einsum("mn,bnd->bmd", self.w[:n, :n], g) + self.b[:n, None]
        return x + self.down(u * (g + t))


class Model(nn.Module):
    """aMLP: gMLP spatial gating unit with tiny attention."""

    def __init__(self, d, ffn, seq, tiny, depth):
        super().__init__()
        self.blocks = nn.ModuleList([Block(d, ffn, seq, tiny) for _ in range(depth)])

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return x


def get_inputs():
    return [torch.randn(2, 77, 52)]


def get_init_inputs():
    return [52, 156, 77, 24, 2]
