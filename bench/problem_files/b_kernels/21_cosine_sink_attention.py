import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grouped-query attention: normalised q/k, rotary by roll, soft-capped scores, sink logits, document masks, top-k."""

    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.h, self.g, self.d = heads, kv_heads, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * kv_heads * self.d, bias=False)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), 6.0))
        self.sink = nn.Parameter(torch.linspace(-1, 1, heads))

    def forward(self, x, doc):
        B, N, D = x.shape
        q = F.normalize(self.q(x).view(B, N, self.h, self.d), dim=-1).transpose(1, 2)
        k, v = self.kv(x).view(B, N, self.g, 2, self.d).permute(3, 0, 2, 1, 4)
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
        pos = torch.arange(N, device=x.device, dtype=x.dtype)[:, None]
        ang = pos * 0.3 ** (torch.arange(self.d, device=x.device) // 2)
        sign = torch.tensor([-1.0, 1.0], device=x.device).repeat(self.d // 2)
        swap = lambda z: z.unflatten(-1, (-1, 2)).roll(1, -1).flatten(-2) * sign
        q = q * ang.cos() + swap(q) * ang.sin()
        k = k * ang.cos() + swap(k) * ang.sin()
        k = k.repeat_interleave(self.h // self.g, dim=1)
        v = v.unsqueeze(2).expand(-1, -1, self.h // self.g, -1, -1).flatten(1, 2)
        s = 4.0 * torch.tanh(q @ k.transpose(-1, -2) * self.scale / 4.0)
        same = (doc[:, :, None] == doc[:, None, :]) & torch.ones(N, N, dtype=torch.bool, device=x.device).tril(2)
        s = s.masked_fill(~same[:, None], -3e4)
        m = torch.maximum(s.amax(-1, keepdim=True), self.sink.view(1, -1, 1, 1))
        e = torch.exp(s - m)
        p = e / (e.sum(-1, keepdim=True) + torch.exp(self.sink.view(1, -1, 1, 1) - m))
        kth = p.topk(5, dim=-1).values[..., -1:]
        p = torch.where(p >= kth, p, p * 0.25)
        y = (p @ v).permute(0, 2, 1, 3).flatten(2)
        return y, p.sum(-1) * m.squeeze(-1), same.sum(-1)


def get_inputs():
    doc = (torch.rand(3, 89) < 0.1).long().cumsum(1)
    return [torch.randn(3, 89, 72), doc]


def get_init_inputs():
    return [72, 6, 2]
