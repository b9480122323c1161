import torch
import torch.nn as nn
import torch.nn.functional as F


def rms_layernorm(hidden, weight, eps):
    old_dtype = hidden.dtype
    variance = hidden.to(torch.float32).pow(2).mean(dim=-1, keepdim=True)
    hidden = (hidden * torch.rsqrt(variance + eps)).to(old_dtype)
    return hidden * weight


class MiniCPMRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        return rms_layernorm(hidden_states, self.weight, self.variance_epsilon)


class MiniCPMLongRoPE(nn.Module):
    def __init__(self, dim, max_position, base, original_max, short_factor, long_factor):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.original_max = original_max
        self.short_factor, self.long_factor = short_factor, long_factor
        scale = max_position / original_max
        ln = lambda v: float(torch.log(torch.tensor(float(v))))
        self.scaling_factor = (1 + ln(scale) / ln(original_max)) ** 0.5

    def forward(self, x, seq_len):
        t = torch.arange(seq_len, device=x.device, dtype=self.inv_freq.dtype)
        factors = self.long_factor if seq_len > self.original_max else self.short_factor
        ext_factors = torch.tensor(factors, dtype=torch.float32, device=x.device)
        freqs = torch.mul(torch.outer(t, 1.0 / ext_factors).to(device=x.device), self.inv_freq.to(x.device))
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype) * self.scaling_factor, emb.sin().to(x.dtype) * self.scaling_factor


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin, position_ids, unsqueeze_dim=1):
    orig_dtype = k.dtype
    cos = cos[position_ids].unsqueeze(unsqueeze_dim)
    sin = sin[position_ids].unsqueeze(unsqueeze_dim)
    q_fp32, k_fp32 = q.to(dtype=torch.float32), k.to(dtype=torch.float32)
    q_embed = (q_fp32 * cos) + (rotate_half(q_fp32) * sin)
    k_embed = (k_fp32 * cos) + (rotate_half(k_fp32) * sin)
    return q_embed.to(dtype=orig_dtype), k_embed.to(dtype=orig_dtype)


class MiniCPMAttention(nn.Module):
    """Multi-head latent attention with the states assembled by slice assignment."""

    def __init__(self, hidden, heads, q_lora_rank, kv_lora_rank, nope, rope_dim, v_dim, rope):
        super().__init__()
        self.num_heads, self.kv_lora_rank = heads, kv_lora_rank
        self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = nope, rope_dim, v_dim
        self.q_head_dim = nope + rope_dim
        self.q_a_proj = nn.Linear(hidden, q_lora_rank, bias=False)
        self.q_a_layernorm = MiniCPMRMSNorm(q_lora_rank)
        self.q_b_proj = nn.Linear(q_lora_rank, heads * self.q_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, kv_lora_rank + rope_dim, bias=False)
        self.kv_a_layernorm = MiniCPMRMSNorm(kv_lora_rank)
        self.kv_b_proj = nn.Linear(kv_lora_rank, heads * (nope + v_dim), bias=False)
        self.o_proj = nn.Linear(heads * v_dim, hidden, bias=False)
        self.softmax_scale = self.q_head_dim ** (-0.5)
        self.rotary_emb = rope

    def forward(self, hidden_states, attention_mask, position_ids):
        bsz, q_len, _ = hidden_states.size()
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        q = q.view(bsz, q_len, self.num_heads, self.q_head_dim).transpose(1, 2)
        q_nope, q_pe = torch.split(q, [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)

        compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
        compressed_kv, k_pe = torch.split(compressed_kv, [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        k_pe = k_pe.view(bsz, q_len, 1, self.qk_rope_head_dim).transpose(1, 2)
        kv = (
            self.kv_b_proj(self.kv_a_layernorm(compressed_kv))
            .view(bsz, q_len, self.num_heads, self.qk_nope_head_dim + self.v_head_dim)
            .transpose(1, 2)
        )
        k_nope, value_states = torch.split(kv, [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        kv_seq_len = value_states.shape[-2]
        cos, sin = self.rotary_emb(value_states, seq_len=kv_seq_len)
        q_pe, k_pe = apply_rotary_pos_emb(q_pe, k_pe, cos, sin, position_ids)

        query_states = k_pe.new_empty(bsz, self.num_heads, q_len, self.q_head_dim)
        query_states[:, :, :, : self.qk_nope_head_dim] = q_nope
        query_states[:, :, :, self.qk_nope_head_dim :] = q_pe
        key_states = k_pe.new_empty(bsz, self.num_heads, q_len, self.q_head_dim)
        key_states[:, :, :, : self.qk_nope_head_dim] = k_nope
        key_states[:, :, :, self.qk_nope_head_dim :] = k_pe

        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * self.softmax_scale
        attn_weights = attn_weights + attention_mask
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)
        attn_weights = F.dropout(attn_weights, p=0.0, training=self.training)
        attn_output = torch.matmul(attn_weights, value_states)
        attn_output = attn_output.transpose(1, 2).contiguous()
        return self.o_proj(attn_output.reshape(bsz, q_len, self.num_heads * self.v_head_dim))


class MiniCPMMLP(nn.Module):
    def __init__(self, hidden, inter):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inter, bias=False)
        self.up_proj = nn.Linear(hidden, inter, bias=False)
        self.down_proj = nn.Linear(inter, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MiniCPMDecoderLayer(nn.Module):
    def __init__(self, hidden, inter, scale_depth, num_layers, attn_args):
        super().__init__()
        self.self_attn = MiniCPMAttention(hidden, *attn_args)
        self.mlp = MiniCPMMLP(hidden, inter)
        self.input_layernorm, self.post_attention_layernorm = MiniCPMRMSNorm(hidden), MiniCPMRMSNorm(hidden)
        self.scale_depth, self.num_hidden_layers = scale_depth, num_layers

    def forward(self, hidden_states, attention_mask, position_ids):
        residual = hidden_states
        hidden_states = self.self_attn(self.input_layernorm(hidden_states), attention_mask, position_ids)
        hidden_states = residual + hidden_states * (self.scale_depth / self.num_hidden_layers**0.5)
        residual = hidden_states
        hidden_states = self.mlp(self.post_attention_layernorm(hidden_states))
        return residual + hidden_states * (self.scale_depth / self.num_hidden_layers**0.5)


class Model(nn.Module):
    """MiniCPM3-like decoder in bfloat16: multi-head latent attention, LongRoPE, depth-scaled residuals, width-scaled logits, z-loss."""

    def __init__(self, vocab, hidden, inter, layers, heads, q_rank, kv_rank, nope, rope_dim, v_dim):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        short = [1.0 + 0.02 * i for i in range(rope_dim // 2)]
        long = [1.0 + 0.5 * i for i in range(rope_dim // 2)]
        rope = MiniCPMLongRoPE(rope_dim, 256, 10000.0, 64, short, long)
        attn_args = (heads, q_rank, kv_rank, nope, rope_dim, v_dim, rope)
        self.layers = nn.ModuleList([MiniCPMDecoderLayer(hidden, inter, 1.4, layers, attn_args) for _ in range(layers)])
        self.norm = MiniCPMRMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.scale_emb, self.width_ratio = 12, hidden / 64
        inv_freq = rope.inv_freq
        self.to(torch.bfloat16)
        rope.inv_freq = inv_freq  # the angles stay in float32

    def forward(self, input_ids, attention_mask):
        inputs_embeds = self.embed_tokens(input_ids) * self.scale_emb
        bsz, n = input_ids.shape
        position_ids = torch.arange(0, n, dtype=torch.long, device=input_ids.device).unsqueeze(0)
        min_value = torch.finfo(inputs_embeds.dtype).min
        causal = torch.full((n, n), min_value, dtype=inputs_embeds.dtype, device=input_ids.device)
        cond = torch.arange(n, device=input_ids.device)
        causal.masked_fill_(cond < (cond + 1).view(n, 1), 0)
        expanded = 1.0 - attention_mask[:, None, None, :].expand(bsz, 1, n, n).to(inputs_embeds.dtype)
        mask = causal[None, None].expand(bsz, 1, n, n).masked_fill(expanded.to(torch.bool), min_value)
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, position_ids)
        hidden_states = self.norm(hidden_states)
        logits = self.lm_head(hidden_states / self.width_ratio).float()
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = torch.where(attention_mask[:, 1:] > 0, input_ids[:, 1:], -100).contiguous()
        loss = F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
        z = torch.logsumexp(shift_logits, dim=-1)
        z_loss = (z * z * (shift_labels != -100)).sum() / (shift_labels != -100).sum()
        return loss + 1e-4 * z_loss, logits


def get_inputs():
    B, L = 2, 101
    mask = (torch.arange(L)[None] < torch.tensor([101, 64])[:, None]).long()
    return [torch.randint(0, 900, (B, L)), mask]


def get_init_inputs():
    return [900, 256, 512, 4, 8, 96, 64, 32, 16, 32]
