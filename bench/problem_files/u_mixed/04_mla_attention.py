import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


def apply_rotary(x, cos, sin):
    # interleaved layout, as in the DeepSeek code
    b, s, h, d = x.shape
    x = x.view(b, s, h, d // 2, 2)
    x1, x2 = x.unbind(-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class Model(nn.Module):
    """Multi-head latent attention (absorbed weights) with decoupled rotary keys."""

    def __init__(self, dim, n_heads, q_rank, kv_rank, d_nope, d_rope, d_v):
        super().__init__()
        self.n_heads, self.kv_rank = n_heads, kv_rank
        self.d_nope, self.d_rope, self.d_v = d_nope, d_rope, d_v
        self.wq_a = nn.Linear(dim, q_rank, bias=False)
        self.q_norm = RMSNorm(q_rank)
        self.wq_b = nn.Linear(q_rank, n_heads * (d_nope + d_rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_rank + d_rope, bias=False)
        self.kv_norm = RMSNorm(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, n_heads * (d_nope + d_v), bias=False)
        self.wo = nn.Linear(n_heads * d_v, dim, bias=False)
        self.softmax_scale = (d_nope + d_rope) ** -0.5

    def forward(self, x, lengths):
        bsz, seqlen, _ = x.shape
        inv_freq = 1.0 / (10000.0 ** (torch.arange(0, self.d_rope, 2, device=x.device).float() / self.d_rope))
        t = torch.arange(seqlen, device=x.device, dtype=torch.float32)
        freqs = torch.outer(t, inv_freq)
        cos, sin = freqs.cos(), freqs.sin()

        q = self.wq_b(self.q_norm(self.wq_a(x)))
        q = q.view(bsz, seqlen, self.n_heads, self.d_nope + self.d_rope)
        q_nope, q_pe = torch.split(q, [self.d_nope, self.d_rope], dim=-1)
        q_pe = apply_rotary(q_pe.contiguous(), cos, sin)

        kv, k_pe = torch.split(self.wkv_a(x), [self.kv_rank, self.d_rope], dim=-1)
        k_pe = apply_rotary(k_pe.unsqueeze(2).contiguous(), cos, sin).squeeze(2)
        kv = self.kv_norm(kv)

        wkv_b = self.wkv_b.weight.view(self.n_heads, -1, self.kv_rank)
        q_lat = torch.einsum("bshd,hdc->bshc", q_nope, wkv_b[:, : self.d_nope])
        scores = torch.einsum("bshc,btc->bsht", q_lat, kv)
        scores = scores + torch.einsum("bshr,btr->bsht", q_pe, k_pe)
        scores *= self.softmax_scale

        causal = torch.full((seqlen, seqlen), float("-inf"), device=x.device).triu_(1)
        scores += causal.unsqueeze(1)
        pad = torch.arange(seqlen, device=x.device)[None, :] >= lengths[:, None]
        scores = scores.masked_fill(pad[:, None, None, :], torch.finfo(scores.dtype).min)
        attn = scores.softmax(dim=-1, dtype=torch.float32).type_as(x)

        out = torch.einsum("bsht,btc->bshc", attn, kv)
        out = torch.einsum("bshc,hdc->bshd", out, wkv_b[:, -self.d_v :])
        return self.wo(out.flatten(2))


def get_inputs():
    return [torch.randn(2, 37, 72), torch.tensor([37, 29])]


def get_init_inputs():
    return [72, 4, 30, 20, 16, 8, 12]
