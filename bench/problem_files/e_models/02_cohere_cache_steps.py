import torch
from torch import nn


class CohereLayerNorm(nn.Module):
    def __init__(self, hidden_size=None, eps=1e-5, bias=False):
        """The hidden size can be a tuple or an int. The tuple is used for QKNorm to normalize across head_dim"""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        mean = hidden_states.mean(-1, keepdim=True)
        variance = (hidden_states - mean).pow(2).mean(-1, keepdim=True)
        hidden_states = (hidden_states - mean) * torch.rsqrt(variance + self.variance_epsilon)
        hidden_states = self.weight.to(torch.float32) * hidden_states
        return hidden_states.to(input_dtype)


class CohereRotaryEmbedding(nn.Module):
    def __init__(self, dim, base=75000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq[None, None, :]
        emb = torch.repeat_interleave(freqs, 2, dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def rotate_half(x):
    # interleaved, not split in two halves
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack([-x2, x1], dim=-1).flatten(-2)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    dtype = q.dtype
    q = q.float()
    k = k.float()
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed.to(dtype=dtype), k_embed.to(dtype=dtype)


class DynamicCache:
    def __init__(self):
        self.key_cache = []
        self.value_cache = []

    def update(self, key_states, value_states, layer_idx):
        if len(self.key_cache) <= layer_idx:
            self.key_cache.append(key_states)
            self.value_cache.append(value_states)
        else:
            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key_states], dim=-2)
            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value_states], dim=-2)
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

    def get_seq_length(self, layer_idx=0):
        return self.key_cache[layer_idx].shape[-2] if len(self.key_cache) > layer_idx else 0


class CohereAttention(nn.Module):
    def __init__(self, hidden, heads, kv_heads, layer_idx, sliding_window):
        super().__init__()
        self.layer_idx = layer_idx
        self.num_heads, self.num_kv, self.head_dim = heads, kv_heads, hidden // heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)
        self.q_norm = CohereLayerNorm(hidden_size=(heads, self.head_dim))
        self.k_norm = CohereLayerNorm(hidden_size=(kv_heads, self.head_dim))

    def forward(self, hidden_states, position_embeddings, past_key_value):
        bsz, q_len, _ = hidden_states.shape
        q = self.q_norm(self.q_proj(hidden_states).view(bsz, q_len, -1, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(bsz, q_len, -1, self.head_dim)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, -1, self.head_dim).transpose(1, 2)
        # the sliding layers rotate, the global layers have no positions at all
        if self.sliding_window is not None:
            cos, sin = position_embeddings
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
        past = past_key_value.get_seq_length(self.layer_idx)
        k, v = past_key_value.update(k, v, self.layer_idx)
        kv_len = k.shape[-2]
        qi = torch.arange(past, past + q_len, device=q.device)[:, None]
        ki = torch.arange(kv_len, device=q.device)[None, :]
        mask = ki <= qi
        if self.sliding_window is not None:
            mask = mask & (qi - ki < self.sliding_window)
        k = torch.repeat_interleave(k, self.num_heads // self.num_kv, dim=1)
        v = torch.repeat_interleave(v, self.num_heads // self.num_kv, dim=1)
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])
        return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, -1))


class CohereMLP(nn.Module):
    def __init__(self, hidden, inter):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inter, bias=False)
        self.up_proj = nn.Linear(hidden, inter, bias=False)
        self.down_proj = nn.Linear(inter, hidden, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class CohereDecoderLayer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, inter, layer_idx, sliding_window):
        super().__init__()
        self.self_attn = CohereAttention(hidden, heads, kv_heads, layer_idx, sliding_window)
        self.mlp = CohereMLP(hidden, inter)
        self.input_layernorm = CohereLayerNorm(hidden_size=hidden)

    def forward(self, hidden_states, **kwargs):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states_attention = self.self_attn(hidden_states, **kwargs)
        hidden_states_mlp = self.mlp(hidden_states)
        return residual + hidden_states_attention + hidden_states_mlp


class Model(nn.Module):
    """Cohere-Command-like decoder (parallel block, per-head norms, rotary only in sliding layers): prefill, then cached single-token steps."""

    def __init__(self, vocab, hidden, heads, kv_heads, inter, layers, window, logit_scale):
        super().__init__()
        self.logit_scale = logit_scale
        self.embed_tokens = nn.Embedding(vocab, hidden, 0)
        self.layers = nn.ModuleList(
            [
                CohereDecoderLayer(hidden, heads, kv_heads, inter, i, window if (i + 1) % 4 != 0 else None)
                for i in range(layers)
            ]
        )
        self.norm = CohereLayerNorm(hidden_size=hidden)
        self.rotary_emb = CohereRotaryEmbedding(hidden // heads)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=0.06)

    def _step(self, input_ids, past_key_values, logits_to_keep=0):
        h = self.embed_tokens(input_ids)
        past = past_key_values.get_seq_length()
        position_ids = torch.arange(past, past + input_ids.shape[1], device=h.device).unsqueeze(0)
        pe = self.rotary_emb(h, position_ids)
        for layer in self.layers:
            h = layer(h, position_embeddings=pe, past_key_value=past_key_values)
        h = self.norm(h)
        return self.lm_head(h[:, slice(-logits_to_keep, None) if logits_to_keep else slice(None), :]) * self.logit_scale

    def forward(self, prompt_ids, forced_ids):
        cache = DynamicCache()
        outs = [self._step(prompt_ids, cache, logits_to_keep=1)]
        for t in range(forced_ids.shape[1]):
            outs.append(self._step(forced_ids[:, t : t + 1], cache, logits_to_keep=1))
        logits = torch.cat(outs, dim=1)
        return logits, tuple(zip(cache.key_cache, cache.value_cache))


def get_inputs():
    return [torch.randint(1, 1100, (3, 58)), torch.randint(1, 1100, (3, 3))]


def get_init_inputs():
    return [1100, 192, 6, 2, 480, 4, 16, 0.25]
