import torch
from torch import nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        og_dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        x = x.to(og_dtype)
        return self.weight * x


class RotaryEmbedding(nn.Module):
    """OLMo: rotary is applied in full precision, then cast back."""

    def __init__(self, head_dim: int, max_len: int, theta: float = 500000.0):
        super().__init__()
        inv = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))
        freqs = torch.einsum("i,j->ij", torch.arange(max_len, dtype=torch.float), inv)
        pos = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("pos_sin", pos.sin()[None, None], persistent=False)
        self.register_buffer("pos_cos", pos.cos()[None, None], persistent=False)

    @staticmethod
    def rotate_half(x):
        B, nh, T, hs = x.size()
        x = x.view(B, nh, T, 2, hs // 2)
        x1, x2 = x.unbind(dim=-2)
        return torch.cat((-x2, x1), dim=-1)

    def forward(self, q, k):
        q_, k_ = q.float(), k.float()
        T = q.shape[-2]
        sin = self.pos_sin[:, :, :T, :].float()
        cos = self.pos_cos[:, :, :T, :].float()
        q_ = (q_ * cos) + (self.rotate_half(q_) * sin)
        k_ = (k_ * cos) + (self.rotate_half(k_) * sin)
        return q_.type_as(q), k_.type_as(k)


class OLMoBlock(nn.Module):
    def __init__(self, d_model: int, n_heads: int, mlp_hidden: int, max_len: int):
        super().__init__()
        self.n_heads = n_heads
        self.fused_dims = (d_model, d_model, d_model)
        self.att_proj = nn.Linear(d_model, sum(self.fused_dims), bias=False)
        self.attn_out = nn.Linear(d_model, d_model, bias=False)
        self.q_norm = RMSNorm(d_model)   # over all heads at once
        self.k_norm = RMSNorm(d_model)
        self.rotary_emb = RotaryEmbedding(d_model // n_heads, max_len)
        self.ff_proj = nn.Linear(d_model, 2 * mlp_hidden, bias=False)
        self.ff_out = nn.Linear(mlp_hidden, d_model, bias=False)
        self.attn_norm = RMSNorm(d_model)
        self.ff_norm = RMSNorm(d_model)

    def attention(self, x):
        B, T, C = x.size()
        q, k, v = self.att_proj(x).split(self.fused_dims, dim=-1)
        q, k = self.q_norm(q), self.k_norm(k)
        q = q.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2)
        k = k.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2)
        v = v.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2)
        q, k = self.rotary_emb(q, k)
        att = F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)
        att = att.transpose(1, 2).contiguous().view(B, T, C)
        return self.attn_out(att)

    def forward(self, x):
        # reordered norm: normalise the branch output, not its input
        x = x + self.attn_norm(self.attention(x))
        ff, gate = self.ff_proj(x).chunk(2, dim=-1)
        return x + self.ff_norm(self.ff_out(F.silu(gate) * ff))


class Model(nn.Module):
    def __init__(self, d_model, n_heads, mlp_hidden, vocab, max_len, z_weight):
        super().__init__()
        self.z_weight = z_weight
        self.wte = nn.Embedding(vocab, d_model)
        self.block = OLMoBlock(d_model, n_heads, mlp_hidden, max_len)
        self.ln_f = RMSNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def forward(self, input_ids, loss_mask):
        x = self.block(self.wte(input_ids))
        logits = self.lm_head(self.ln_f(x))
        shift_logits = logits[:, :-1, :].contiguous().float()
        labels = input_ids[:, 1:].masked_fill(~loss_mask[:, 1:].bool(), -100)
        flat = shift_logits.view(-1, shift_logits.size(-1))
        ce = F.cross_entropy(flat, labels.reshape(-1), ignore_index=-100, reduction="none")
        z = flat.logsumexp(-1).pow(2) * loss_mask[:, 1:].reshape(-1)
        n = loss_mask[:, 1:].sum().clamp(min=1)
        return ce.sum() / n, self.z_weight * z.sum() / n


def get_inputs():
    ids = torch.randint(0, 50304, (2, 1024))
    mask = torch.randint(0, 8, (2, 1024)).ne(0).long()
    return [ids, mask]


def get_init_inputs():
    return [2048, 16, 8192, 50304, 4096, 1e-4]
