import torch
from torch import nn
import torch.nn.functional as F


def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    # x: (b, h, d_rope) ; freqs_cis: (b, d_rope / 2), complex
    dtype = x.dtype
    xc = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    y = torch.view_as_real(xc * freqs_cis[:, None, :]).flatten(-2)
    return y.to(dtype)


class MLA(nn.Module):
    """
    Multi-head latent attention, one decoding step, with the up-projections absorbed:
    scores are taken against the cached latent, never against expanded keys.
    """

    def __init__(self, dim, n_heads, q_lora_rank, kv_lora_rank, qk_nope, qk_rope, v_dim):
        super().__init__()
        self.n_heads, self.kv_lora_rank = n_heads, kv_lora_rank
        self.qk_nope, self.qk_rope, self.v_dim = qk_nope, qk_rope, v_dim
        self.wq_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = nn.RMSNorm(q_lora_rank, eps=1e-6)
        self.wq_b = nn.Linear(q_lora_rank, n_heads * (qk_nope + qk_rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope, bias=False)
        self.kv_norm = nn.RMSNorm(kv_lora_rank, eps=1e-6)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (qk_nope + v_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)
        self.softmax_scale = (qk_nope + qk_rope) ** -0.5

    def forward(self, x, kv_cache, pe_cache, pos):
        bsz = x.shape[0]
        rd = self.qk_rope
        freqs = 1.0 / (10000.0 ** (torch.arange(0, rd, 2, dtype=torch.float32, device=x.device) / rd))
        angle = pos[:, None].float() * freqs[None, :]
        freqs_cis = torch.polar(torch.ones_like(angle), angle)

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(bsz, self.n_heads, self.qk_nope + rd)
        q_nope, q_pe = torch.split(q, [self.qk_nope, rd], dim=-1)
        q_pe = apply_rotary_emb(q_pe, freqs_cis)
        kv, k_pe = torch.split(self.wkv_a(x), [self.kv_lora_rank, rd], dim=-1)
        k_pe = apply_rotary_emb(k_pe.unsqueeze(1), freqs_cis).squeeze(1)
        kv = self.kv_norm(kv)

        # write this step's entry out of place: every row has its own position
        idx = pos.view(bsz, 1, 1)
        kv_cache = kv_cache.scatter(1, idx.expand(-1, 1, self.kv_lora_rank), kv.unsqueeze(1).to(kv_cache.dtype))
        pe_cache = pe_cache.scatter(1, idx.expand(-1, 1, rd), k_pe.unsqueeze(1).to(pe_cache.dtype))

        wkv_b = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank)
        q_lat = torch.einsum("bhd,hdc->bhc", q_nope, wkv_b[:, : self.qk_nope])
        scores = (torch.einsum("bhc,btc->bht", q_lat, kv_cache)
                  + torch.einsum("bhr,btr->bht", q_pe, pe_cache)) * self.softmax_scale
        t = torch.arange(kv_cache.shape[1], device=x.device)
        scores = scores.masked_fill((t[None, :] > pos[:, None])[:, None, :], float("-inf"))
        scores = scores.softmax(dim=-1, dtype=torch.float32).type_as(x)
        o = torch.einsum("bht,btc->bhc", scores, kv_cache)
        o = torch.einsum("bhc,hdc->bhd", o, wkv_b[:, -self.v_dim:])
        return self.wo(o.flatten(1)), kv_cache, pe_cache


class Model(nn.Module):
    def __init__(self, dim, inter, n_heads, q_lora, kv_lora, nope, rope, v_dim):
        super().__init__()
        self.attn_norm = nn.RMSNorm(dim, eps=1e-6)
        self.attn = MLA(dim, n_heads, q_lora, kv_lora, nope, rope, v_dim)
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-6)
        self.w1 = nn.Linear(dim, inter, bias=False)
        self.w2 = nn.Linear(inter, dim, bias=False)
        self.w3 = nn.Linear(dim, inter, bias=False)

    def forward(self, x, kv_cache, pe_cache, pos):
        a, kv_cache, pe_cache = self.attn(self.attn_norm(x), kv_cache, pe_cache, pos)
        x = x + a
        h = self.ffn_norm(x)
        x = x + self.w2(F.silu(self.w1(h)) * self.w3(h))
        return x, kv_cache, pe_cache


def get_inputs():
    b, t = 32, 4096
    return [
        torch.randn(b, 5120),
        torch.randn(b, t, 512),
        torch.randn(b, t, 64),
        torch.randint(t // 2, t, (b,)),
    ]


def get_init_inputs():
    # DeepSeek-V2 dimensions, half of the heads
    return [5120, 12288, 64, 1536, 512, 128, 64, 128]
