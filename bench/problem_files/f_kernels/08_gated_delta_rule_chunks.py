import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, heads, dk, dv, chunk):
        super().__init__()
        self.h, self.dk, self.dv, self.chunk = heads, dk, dv, chunk
        self.proj = nn.Linear(dim, heads * (2 * dk + 2 * dv), bias=False)
        self.conv = nn.Parameter(0.4 * torch.randn(heads * (2 * dk + dv), 1, 4))
        self.ab = nn.Linear(dim, 2 * heads)
        self.a_log = nn.Parameter(torch.log(torch.rand(heads) * 4 + 0.5))
        self.norm = nn.Parameter(torch.ones(dv) + 0.1 * torch.randn(dv))
        self.out = nn.Linear(heads * dv, dim, bias=False)

    def forward(self, x, state):
        b, t, _ = x.shape
        h, dk, dv, c = self.h, self.dk, self.dv, self.chunk
        qkv, z = self.proj(x).split([h * (2 * dk + dv), h * dv], dim=-1)
        qkv = F.silu(F.conv1d(F.pad(qkv.transpose(1, 2), (3, 0)), self.conv, groups=qkv.shape[-1])).transpose(1, 2)
        q, k, v = qkv.split([h * dk, h * dk, h * dv], dim=-1)
        a, beta = self.ab(x).chunk(2, dim=-1)
        g = -self.a_log.exp() * F.softplus(a)
        pad = -t % c
        n = (t + pad) // c

        def cut(m, width):
            m = F.pad(m.reshape(b, t, h, width), (0, 0, 0, 0, 0, pad))
            return m.view(b, n, c, h, width).permute(0, 3, 1, 2, 4)

        q = F.normalize(cut(q, dk), dim=-1) * dk ** -0.5
        k = F.normalize(cut(k, dk), dim=-1)
        v = cut(v, dv)
        beta, g = cut(beta.sigmoid(), 1), cut(g, 1).squeeze(-1).cumsum(-1)
        decay = (g.unsqueeze(-1) - g.unsqueeze(-2)).tril().exp().tril()
        m = -((k * beta) @ k.transpose(-1, -2) * decay).tril(-1)
        for i in range(1, c):
            row = m[..., i, :i].clone()
            m[..., i, :i] = row + (row.unsqueeze(-1) * m[..., :i, :i].clone()).sum(-2)
        m = m + torch.eye(c, device=x.device)
        u = m @ (v * beta)
        w = m @ (k * beta * g.exp().unsqueeze(-1))
        outs = []
        for i in range(n):
            gi = g[:, :, i, :, None]
            new = u[:, :, i] - w[:, :, i] @ state
            o = (q[:, :, i] * gi.exp()) @ state + ((q[:, :, i] @ k[:, :, i].transpose(-1, -2)) * decay[:, :, i]) @ new
            last = gi[:, :, -1:]
            state = state * last.exp() + (k[:, :, i] * (last - gi).exp()).transpose(-1, -2) @ new
            outs.append(o)
        o = torch.stack(outs, 2).permute(0, 2, 3, 1, 4).reshape(b, n * c, h, dv)[:, :t]
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * self.norm * F.silu(z.view(b, t, h, dv))
        return self.out(o.reshape(b, t, h * dv)), state


def get_inputs():
    return [torch.randn(2, 149, 60), 0.1 * torch.randn(2, 3, 20, 28)]


def get_init_inputs():
    return [60, 3, 20, 28, 16]
