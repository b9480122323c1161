import torch
import torch.nn as nn


class Model(nn.Module):
    """Grouped-query attention with tanh soft cap, ALiBi, causal window plus two sink keys, a learned null logit and ragged lengths."""

    def __init__(self, heads, kv_heads, window):
        super().__init__()
        self.null = nn.Parameter(torch.linspace(-1.0, 1.0, heads).view(heads, 1, 1))
        self.slope = nn.Parameter(torch.logspace(-1, -2.5, heads).view(heads, 1, 1))
        self.rep = heads // kv_heads
        self.window = window

    def forward(self, q, k, v, lengths):
        b, h, n, d = q.shape
        k = k.unsqueeze(2).expand(-1, -1, self.rep, -1, -1).flatten(1, 2)
        v = v.unsqueeze(2).expand(-1, -1, self.rep, -1, -1).flatten(1, 2)
        s = 20.0 * torch.tanh(q @ k.transpose(-1, -2) * (d**-0.5) / 20.0)
        pos = torch.arange(n, device=q.device)
        gap = pos[:, None] - pos[None, :]
        ok = (gap >= 0) & ((gap < self.window) | (pos < 2))
        ok = ok & (pos < lengths[:, None, None, None])  # a length of 0 leaves only the null key
        s = (s - self.slope * gap.clamp(min=0)).masked_fill(~ok, float("-inf"))
        s = torch.cat([self.null.expand(b, h, n, 1), s], dim=-1)
        p = torch.softmax(s, dim=-1)[..., 1:]
        o = p @ v
        return o.transpose(1, 2).reshape(b, n, h * d) * p.sum(dim=-1).mean(dim=1).unsqueeze(-1)


def get_inputs():
    return [torch.randn(3, 6, 257, 40), torch.randn(3, 2, 257, 40), torch.randn(3, 2, 257, 40), torch.tensor([257, 101, 0])]


def get_init_inputs():
    return [6, 2, 37]
