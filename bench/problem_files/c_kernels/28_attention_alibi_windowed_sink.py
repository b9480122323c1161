import torch
import torch.nn as nn


class Model(nn.Module):
    """Attention with a linear distance bias, a causal window, a learned sink logit in the softmax and fewer key heads than query heads."""

    def __init__(self, heads, kv_heads, window):
        super().__init__()
        self.rep = heads // kv_heads
        self.window = window
        self.slope = nn.Parameter(torch.pow(2.0, -torch.arange(1, heads + 1) / 2.0))
        self.sink = nn.Parameter(torch.zeros(heads))

    def forward(self, q, k, v):
        b, h, n, d = q.shape
        k = k.repeat_interleave(self.rep, dim=1)
        v = v.repeat_interleave(self.rep, dim=1)
        scores = torch.matmul(q, k.transpose(-1, -2)) * d ** -0.5
        pos = torch.arange(n, device=q.device)
        dist = pos[:, None] - pos[None, :]
        scores = scores - self.slope.view(h, 1, 1) * dist.abs().to(q.dtype)
        scores = scores.masked_fill((dist < 0) | (dist >= self.window), float("-inf"))
        sink = self.sink.view(1, h, 1, 1).expand(b, h, n, 1)
        probs = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
        return torch.matmul(probs, v)


batch, heads, kv_heads, length, dim = 6, 10, 2, 907, 72


def get_inputs():
    return [
        torch.randn(batch, heads, length, dim),
        torch.randn(batch, kv_heads, length, dim),
        torch.randn(batch, kv_heads, length, dim),
    ]


def get_init_inputs():
    return [heads, kv_heads, 260]
