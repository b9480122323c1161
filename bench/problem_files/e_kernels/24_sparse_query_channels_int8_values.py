import torch
import torch.nn as nn


class Model(nn.Module):
    """A decoding step that reads only the key channels where the query is largest, masks invalid places, and mixes values stored as bytes with scale and zero point per place."""

    def __init__(self, heads, kept):
        super().__init__()
        self.kept = kept
        self.null = nn.Parameter(torch.zeros(heads, 1, 1))

    def forward(self, q, k, codes, scale, zero, valid):
        strength, channels = q.abs().topk(self.kept, dim=-1)  # (B, H, 1, r)
        index = channels.expand(-1, -1, k.shape[2], -1)
        share = strength.sum(dim=-1, keepdim=True) / q.abs().sum(dim=-1, keepdim=True)
        s = q.gather(-1, channels) @ k.gather(-1, index).mT * torch.rsqrt(q.shape[-1] * share)
        s = s.masked_fill(~valid[:, None, None, :], -torch.inf)
        top = torch.maximum(s.amax(dim=-1, keepdim=True), self.null)
        e = torch.exp(s - top)
        p = e / (e.sum(dim=-1, keepdim=True) + torch.exp(self.null - top))
        v = (codes.to(q.dtype) - zero.to(q.dtype)) * scale
        live = valid[:, None, :, None].to(q.dtype)
        mean = (v * live).sum(dim=2, keepdim=True) / live.sum(dim=2, keepdim=True)
        mass = p.sum(dim=-1, keepdim=True)
        return p @ v + (1.0 - mass) * mean, p.amax(dim=1).squeeze(1)


def get_inputs():
    b, h, s, d = 3, 6, 2999, 64
    codes = torch.randint(0, 256, (b, h, s, d), dtype=torch.uint8)
    zero = torch.randint(100, 156, (b, h, s, 1), dtype=torch.uint8)
    valid = torch.arange(s) < torch.tensor([[2999], [1777], [2048]])
    return [torch.randn(b, h, 1, d), torch.randn(b, h, s, d), codes, 0.01 + 0.01 * torch.rand(b, h, s, 1), zero, valid]


def get_init_inputs():
    return [6, 24]
