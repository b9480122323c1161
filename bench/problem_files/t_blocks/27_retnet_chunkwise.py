import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Multi-scale retention in chunkwise-recurrent form, group norm and swish gate."""

    def __init__(self, d, heads, chunk):
        super().__init__()
        self.h, self.hd, self.chunk = heads, d // heads, chunk
        self.q = nn.Linear(d, d, bias=False)
        self.k = nn.Linear(d, d, bias=False)
        self.v = nn.Linear(d, d, bias=False)
        self.g = nn.Linear(d, d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        gamma = 1 - 2.0 ** (-5 - torch.arange(heads).float())
        self.register_buffer("gamma", gamma)
        i = torch.arange(chunk).float()
        rel = i[:, None] - i[None, :]
        D = torch.where(rel >= 0, gamma[:, None, None] ** rel.clamp(min=0), torch.zeros(()))
        self.register_buffer("D", D)
        self.register_buffer("inner", gamma[:, None] ** (i + 1))
        self.register_buffer("outer", gamma[:, None] ** (chunk - 1 - i))

    def forward(self, x):
        b, n, d = x.shape
        nc = n // self.chunk

        def shape(t):
            return t.view(b, nc, self.chunk, self.h, self.hd).permute(1, 0, 3, 2, 4)

        q, k, v = shape(self.q(x)), shape(self.k(x) * self.hd ** -0.5), shape(self.v(x))
        state = x.new_zeros(b, self.h, self.hd, self.hd)
        decay = (self.gamma ** self.chunk)[:, None, None]
        outs = []
        for c in range(nc):
            intra = (q[c] @ k[c].transpose(-1, -2) * self.D) @ v[c]
            cross = (q[c] * self.inner[..., None]) @ state
            outs.append(intra + cross)
            state = state * decay + k[c].transpose(-1, -2) @ (v[c] * self.outer[..., None])
        y = torch.stack(outs, 1).permute(0, 1, 3, 2, 4).reshape(b * n, d)
        y = F.group_norm(y, self.h).view(b, n, d)
        return self.o(F.silu(self.g(x)) * y)


def get_inputs():
    return [torch.randn(2, 152, 72)]


def get_init_inputs():
    return [72, 3, 19]
