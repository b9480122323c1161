import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Attention with ALiBi, sink token, banded and document masks, relative shift, talking heads and rows with no key."""

    def __init__(self, d, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(d, 3 * d)
        self.rel = nn.Parameter(torch.randn(heads, 2 * window + 1) * 0.1)
        self.talk = nn.Parameter(torch.eye(heads) + 0.05)
        self.sink = nn.Parameter(torch.zeros(heads))
        self.out = nn.Linear(d, d)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, heads + 1).float())

    def forward(self, x, doc, pad):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        pos = torch.arange(t, device=x.device)
        dist = pos[:, None] - pos[None, :]
        inside = (dist.abs() <= self.window) | (pos[None, :] < 2) | ((dist % 16 == 0) & (dist > 0))
        same = doc[:, :, None] == doc[:, None, :]
        ok = (inside & same & ~pad[:, None, :])[:, None]
        bias = self.rel[:, (dist + self.window).clamp(0, 2 * self.window)] - self.slopes[:, None, None] * dist.abs()

        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5 + bias
        scores = 8 * torch.tanh(scores / 8)
        scores = torch.einsum("bhqk,hg->bgqk", scores, self.talk)
        scores = scores.masked_fill(~ok, float("-inf"))
        sink = self.sink[None, :, None, None].expand(b, -1, t, 1)
        p = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        o = p @ v

        hard = scores.detach().softmax(-1).nan_to_num(0.0)
        o2 = torch.einsum("bhqk,bhkd->bhqd", hard, v)
        empty = ~ok.any(-1)
        o3 = F.scaled_dot_product_attention(q, k, v, attn_mask=ok | empty[..., None])
        lin = F.elu(q) + 1
        kv = torch.einsum("bhtd,bhte->bhtde", F.elu(k) + 1, v).cumsum(2)
        zz = (lin * (F.elu(k) + 1).cumsum(2)).sum(-1, keepdim=True)
        o4 = torch.einsum("bhtd,bhtde->bhte", lin, kv) / zz
        mix = torch.stack([o, o2, o3, o4]).mean(0)
        ent = -(p * torch.log(p + 1e-6)).sum(-1)
        return self.out(mix.transpose(1, 2).reshape(b, t, d)), ent, empty.sum(), p.amax((1, 3))


def get_inputs():
    doc = (torch.rand(3, 61) < 0.06).long().cumsum(1)
    pad = torch.rand(3, 61) < 0.15
    pad[1, 20:] = True
    return [torch.randn(3, 61, 35), doc, pad]


def get_init_inputs():
    return [35, 5, 7]
