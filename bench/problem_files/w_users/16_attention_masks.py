import math
from dataclasses import dataclass, field
from typing import Dict, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Masks:
    pad: torch.Tensor
    causal: torch.Tensor
    extra: Dict[str, torch.Tensor] = field(default_factory=dict)
    bias: Optional[torch.Tensor] = None


class Model(nn.Module):
    """The same q/k/v under many masks; rows that see nothing must come back as zeros."""

    def __init__(self, dim=48, heads=4, window=7):
        super().__init__()
        self.h, self.d, self.window = heads, dim // heads, window
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * (dim // 2))       # grouped: half as many kv heads
        self.o = nn.Linear(dim, dim)
        self.rel = nn.Embedding(2 * 16 + 1, heads)
        self.sink = nn.Parameter(torch.zeros(heads))
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True, add_bias_kv=True)
        slopes = torch.tensor([2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)])
        self.register_buffer("slopes", slopes)

    def make_masks(self, lengths, seg, T):
        i = torch.arange(T, device=lengths.device)
        m = Masks(pad=i[None, :] < lengths[:, None],
                  causal=torch.ones(T, T, dtype=torch.bool, device=lengths.device).tril())
        dist = i[None, :] - i[:, None]
        m.extra["band"] = dist.abs() <= self.window // 2
        m.extra["strided"] = (dist % 4 == 0) | (dist == -1)
        m.extra["seg"] = seg[:, :, None] == seg[:, None, :]
        m.bias = self.rel(dist.clamp(-16, 16) + 16).permute(2, 0, 1)
        return m

    def plain(self, q, k, v, mask, bias=None):
        s = (q @ k.transpose(-1, -2)) / math.sqrt(self.d)
        if bias is not None:
            s = s + bias
        s = s.masked_fill(~mask, float("-inf"))
        p = torch.nan_to_num(torch.softmax(s, -1), nan=0.0)
        return p @ v, p

    def with_sink(self, q, k, v, mask):
        s = torch.einsum("bhqd,bhkd->bhqk", q, k).mul_(self.d ** -0.5)
        s = torch.where(mask, s, torch.full_like(s, torch.finfo(s.dtype).min))
        sink = self.sink.view(1, -1, 1, 1).expand(s.shape[0], -1, s.shape[2], 1)
        p = torch.cat([s, sink], -1).softmax(-1)[..., :-1]
        return torch.einsum("bhqk,bhkd->bhqd", p, v)

    def forward(self, x, lengths, seg):
        B, T, C = x.shape
        m = self.make_masks(lengths, seg, T)
        q = self.q(x).view(B, T, self.h, self.d).transpose(1, 2)
        k, v = self.kv(x).view(B, T, 2, self.h // 2, self.d).permute(2, 0, 3, 1, 4)
        k = k.repeat_interleave(2, dim=1)
        v = v[:, :, None].expand(-1, -1, 2, -1, -1).reshape(B, self.h, T, self.d)
        pad = m.pad[:, None, None, :]
        qpad = m.pad[:, None, :, None]
        outs = []
        a, p = self.plain(q, k, v, m.causal & pad & qpad, m.bias)
        outs.append(a)
        a, _ = self.plain(q, k, v, (m.extra["band"] & m.extra["seg"] & m.pad[:, None]).unsqueeze(1) & qpad)
        outs.append(a)
        outs.append(self.with_sink(q, k, v, (m.extra["strided"] & m.causal) & pad))
        i = torch.arange(T, device=x.device, dtype=x.dtype)
        alibi = -self.slopes[:, None, None] * (i[:, None] - i[None, :]).abs()
        add = alibi.masked_fill(~m.causal, -torch.inf)
        outs.append(F.scaled_dot_product_attention(q, k, v, attn_mask=add.expand(B, -1, -1, -1)))
        outs.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2))
        y = torch.stack(outs).mean(0).transpose(1, 2).reshape(B, T, C)
        y = self.o(y)
        z, w = self.mha(y, x, x, key_padding_mask=~m.pad, attn_mask=~m.causal, average_attn_weights=False)
        ent = -(p.clamp_min(1e-9).log() * p).sum(-1)
        entropy = ent.mean((0, 2))
        return z * m.pad.unsqueeze(-1), w.amax(-1).mean(1), entropy


def get_inputs():
    B, T = 4, 48
    return [torch.randn(B, T, 48), torch.randint(10, T + 1, (B,)), torch.randint(0, 3, (B, T)).sort(1)[0]]


def get_init_inputs():
    return [48, 4, 7]
