import math

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 4
past_len = 1337
vocab_size = 32003
dim = 1536
n_layers = 10
n_heads = 24
n_kv_heads = 8
intermediate_size = 4096


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


def rotary_cos_sin(position_ids, head_dim, dtype, base=10000.0):
    inv_freq = 1.0 / (base ** (torch.arange(0, head_dim, 2, device=position_ids.device).float() / head_dim))
    freqs = position_ids[:, :, None].float() * inv_freq[None, None, :]
    emb = torch.cat((freqs, freqs), dim=-1)
    return emb.cos().to(dtype), emb.sin().to(dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


def repeat_kv(hidden_states, n_rep):
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


class LlamaAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.q_proj = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x, cos, sin, mask, past_k, past_v):
        bsz, q_len, _ = x.size()
        q = self.q_proj(x).view(bsz, q_len, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, q_len, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, q_len, self.n_kv_heads, self.head_dim).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        k = torch.cat([past_k, k], dim=2)
        v = torch.cat([past_v, v], dim=2)
        keys = repeat_kv(k, self.n_heads // self.n_kv_heads)
        values = repeat_kv(v, self.n_heads // self.n_kv_heads)
        attn_weights = torch.matmul(q, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        attn_weights = attn_weights + mask
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(attn_weights, values)
        out = out.transpose(1, 2).contiguous().reshape(bsz, q_len, -1)
        return self.o_proj(out), k, v


class LlamaDecoderLayer(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, intermediate_size):
        super().__init__()
        self.self_attn = LlamaAttention(dim, n_heads, n_kv_heads)
        self.gate_proj = nn.Linear(dim, intermediate_size, bias=False)
        self.up_proj = nn.Linear(dim, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, dim, bias=False)
        self.input_layernorm = RMSNorm(dim)
        self.post_attention_layernorm = RMSNorm(dim)

    def forward(self, x, *args):
        residual = x
        x, k, v = self.self_attn(self.input_layernorm(x), *args)
        x = residual + x
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return residual + x, k, v


class Model(nn.Module):
    """Llama-style decoder, a single decoding step over a left-padded batch.
    The KV cache comes in stacked over layers and goes out one token longer."""

    def __init__(self, vocab_size, dim, n_layers, n_heads, n_kv_heads, intermediate_size):
        super().__init__()
        self.head_dim = dim // n_heads
        self.embed_tokens = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(
            [LlamaDecoderLayer(dim, n_heads, n_kv_heads, intermediate_size) for _ in range(n_layers)]
        )
        self.norm = RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, input_ids, attention_mask, past_keys, past_values):
        x = self.embed_tokens(input_ids)
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids.masked_fill_(attention_mask == 0, 1)
        position_ids = position_ids[:, -input_ids.shape[1] :]
        cos, sin = rotary_cos_sin(position_ids, self.head_dim, x.dtype)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        new_keys, new_values = [], []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, cos, sin, mask, past_keys[i], past_values[i])
            new_keys.append(k)
            new_values.append(v)
        x = self.norm(x)
        logits = self.lm_head(x[:, -1, :]).float()
        return logits, torch.stack(new_keys), torch.stack(new_values)


def get_inputs():
    head_dim = dim // n_heads
    mask = torch.ones(batch_size, past_len + 1, dtype=torch.long)
    for i in range(batch_size):
        mask[i, : i * (past_len // 9)] = 0
    shape = (n_layers, batch_size, n_kv_heads, past_len, head_dim)
    return [torch.randint(0, vocab_size, (batch_size, 1)), mask, torch.randn(shape), torch.randn(shape)]


def get_init_inputs():
    return [vocab_size, dim, n_layers, n_heads, n_kv_heads, intermediate_size]
