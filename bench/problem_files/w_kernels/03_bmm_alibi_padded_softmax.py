import torch
import torch.nn as nn


class Model(nn.Module):
    """Attention from bmm pieces: distance bias with learned slopes, key padding by lengths, sink logit."""

    def __init__(self, heads, seq, head_dim):
        super().__init__()
        self.slopes = nn.Parameter(torch.exp2(-8.0 * (torch.arange(heads) + 1) / heads))
        self.sink = nn.Parameter(torch.zeros(heads))
        pos = torch.arange(seq)
        self.register_buffer("dist", (pos[:, None] - pos[None, :]).abs().float())
        self.register_buffer("pos", pos)
        self.scale = head_dim ** -0.5

    def forward(self, q, k, v, lengths):
        s = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        s = s - self.slopes[:, None, None] * self.dist
        valid = self.pos[None, :] < lengths[:, None]
        s = s.masked_fill(~valid[:, None, None, :], float("-inf"))
        m = torch.maximum(s.amax(-1, keepdim=True), self.sink[:, None, None])
        e = torch.exp(s - m)
        denom = e.sum(-1, keepdim=True) + torch.exp(self.sink[:, None, None] - m)
        o = torch.matmul(e / denom, v)
        return o.transpose(1, 2).flatten(2)


batch = 16
heads = 12
seq = 577
head_dim = 64


def get_inputs():
    return [
        torch.randn(batch, heads, seq, head_dim),
        torch.randn(batch, heads, seq, head_dim),
        torch.randn(batch, heads, seq, head_dim),
        torch.randint(300, seq + 1, (batch,)),
    ]


def get_init_inputs():
    return [heads, seq, head_dim]
