import torch
import torch.nn as nn


class Model(nn.Module):
    """Self-attention with Shaw et al. clipped relative position keys and values."""

    def __init__(self, dim, heads, max_rel):
        super().__init__()
        self.heads, self.hd, self.max_rel = heads, dim // heads, max_rel
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)
        self.rel_k = nn.Embedding(2 * max_rel + 1, self.hd)
        self.rel_v = nn.Embedding(2 * max_rel + 1, self.hd)

    def forward(self, x, pad_mask):
        b, n, _ = x.shape
        pos = torch.arange(n, device=x.device)
        dist = (pos[None, :] - pos[:, None]).clamp(-self.max_rel, self.max_rel) + self.max_rel
        rk, rv = self.rel_k(dist), self.rel_v(dist)

        def split(t):
            return t.view(b, n, self.heads, self.hd).permute(0, 2, 1, 3)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        s = torch.matmul(q, k.transpose(-1, -2))
        q2 = q.permute(2, 0, 1, 3).reshape(n, b * self.heads, self.hd)
        s2 = torch.bmm(q2, rk.transpose(1, 2)).transpose(0, 1).reshape(b, self.heads, n, n)
        s = (s + s2) / self.hd ** 0.5
        s = s.masked_fill(pad_mask[:, None, None, :], -1e9)
        p = torch.softmax(s, dim=-1)
        o = torch.matmul(p, v)
        p2 = p.permute(2, 0, 1, 3).reshape(n, b * self.heads, n)
        o = o + torch.bmm(p2, rv).transpose(0, 1).reshape(b, self.heads, n, self.hd)
        return self.o(o.transpose(1, 2).contiguous().view(b, n, -1))


def get_inputs():
    lens = torch.tensor([67, 50, 31])
    return [torch.randn(3, 67, 96), torch.arange(67)[None, :] >= lens[:, None]]


def get_init_inputs():
    return [96, 6, 9]
