import torch
import torch.nn as nn
import torch.nn.functional as F


class NeoXAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, rotary_pct, max_positions, base=10000):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.rotary_ndims = int(self.head_size * rotary_pct)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.register_buffer("bias", torch.tril(torch.ones(max_positions, max_positions, dtype=torch.bool)).view(1, 1, max_positions, max_positions), persistent=False)
        inv = 1.0 / (base ** (torch.arange(0, self.rotary_ndims, 2).float() / self.rotary_ndims))
        ang = torch.outer(torch.arange(max_positions).float(), inv)
        ang = torch.cat([ang, ang], -1)
        self.register_buffer("cos_cached", ang.cos()[None, None], persistent=False)
        self.register_buffer("sin_cached", ang.sin()[None, None], persistent=False)
        self.norm_factor = self.head_size ** -0.5

    @staticmethod
    def _rot(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)

    def forward(self, hidden_states, attention_mask):
        bs, seq, _ = hidden_states.shape
        # [batch, seq, heads, 3 * head_size]
        qkv = self.query_key_value(hidden_states).view(bs, seq, self.num_heads, 3 * self.head_size)
        query = qkv[..., : self.head_size].permute(0, 2, 1, 3)
        key = qkv[..., self.head_size : 2 * self.head_size].permute(0, 2, 1, 3)
        value = qkv[..., 2 * self.head_size :].permute(0, 2, 1, 3)
        query_rot, query_pass = query[..., : self.rotary_ndims], query[..., self.rotary_ndims :]
        key_rot, key_pass = key[..., : self.rotary_ndims], key[..., self.rotary_ndims :]
        cos, sin = self.cos_cached[:, :, :seq], self.sin_cached[:, :, :seq]
        query = torch.cat((query_rot * cos + self._rot(query_rot) * sin, query_pass), dim=-1)
        key = torch.cat((key_rot * cos + self._rot(key_rot) * sin, key_pass), dim=-1)
        # baddbmm with beta=1 on an empty bias, as the original does
        q = query.reshape(bs * self.num_heads, seq, self.head_size)
        k = key.reshape(bs * self.num_heads, seq, self.head_size)
        scores = torch.zeros(bs * self.num_heads, seq, seq, dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=1.0, alpha=self.norm_factor)
        scores = scores.view(bs, self.num_heads, seq, seq)
        mask_value = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
        scores = torch.where(self.bias[:, :, :seq, :seq], scores, mask_value)
        scores = scores + attention_mask
        weights = nn.functional.softmax(scores, dim=-1).to(value.dtype)
        out = torch.matmul(weights, value).permute(0, 2, 1, 3).contiguous().view(bs, seq, -1)
        return self.dense(out)


class NeoXLayer(nn.Module):
    def __init__(self, hidden, heads, pct, max_positions, parallel):
        super().__init__()
        self.use_parallel_residual = parallel
        self.input_layernorm = nn.LayerNorm(hidden)
        self.post_attention_layernorm = nn.LayerNorm(hidden)
        self.attention = NeoXAttention(hidden, heads, pct, max_positions)
        self.dense_h_to_4h = nn.Linear(hidden, 4 * hidden)
        self.dense_4h_to_h = nn.Linear(4 * hidden, hidden)

    def mlp(self, x):
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x), approximate="tanh"))

    def forward(self, x, mask):
        attn = self.attention(self.input_layernorm(x), mask)
        if self.use_parallel_residual:
            return self.mlp(self.post_attention_layernorm(x)) + attn + x
        attn = attn + x
        return self.mlp(self.post_attention_layernorm(attn)) + attn


class Model(nn.Module):
    """GPT-NeoX causal LM: interleaved qkv per head, 25% rotary, parallel residual, shifted loss."""

    def __init__(self, vocab, hidden, heads, layers, pct, max_positions):
        super().__init__()
        self.embed_in = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList([NeoXLayer(hidden, heads, pct, max_positions, i % 3 != 2) for i in range(layers)])
        self.final_layer_norm = nn.LayerNorm(hidden)
        self.embed_out = nn.Linear(hidden, vocab, bias=False)

    def forward(self, input_ids, attention_mask):
        x = self.embed_in(input_ids)
        m = attention_mask.view(attention_mask.shape[0], 1, 1, -1).to(dtype=x.dtype)
        m = (1.0 - m) * -10000.0
        for layer in self.layers:
            x = layer(x, m)
        logits = self.embed_out(self.final_layer_norm(x))
        shift_logits = logits[:, :-1, :].contiguous()
        shift_labels = input_ids[:, 1:].contiguous()
        nll = F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1), reduction="none").view_as(shift_labels)
        w = attention_mask[:, 1:].to(nll.dtype)
        return (nll * w).sum() / w.sum(), logits


def get_inputs():
    ids = torch.randint(0, 1500, (4, 83))
    mask = torch.ones(4, 83, dtype=torch.int64)
    mask[1, 60:] = 0
    mask[3, 77:] = 0
    return [ids, mask]


def get_init_inputs():
    return [1500, 192, 6, 3, 0.25, 128]
