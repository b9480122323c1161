import torch
import torch.nn as nn
import torch.nn.functional as F


class Gemma3TextScaledWordEmbedding(nn.Embedding):
    def __init__(self, num_embeddings, embedding_dim, padding_idx, embed_scale=1.0):
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.register_buffer("embed_scale", torch.tensor(embed_scale), persistent=False)

    def forward(self, input_ids):
        return super().forward(input_ids) * self.embed_scale.to(self.weight.dtype)


class Gemma3RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


class Gemma3MLP(nn.Module):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Gemma3RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, base, factor=1.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
        self.register_buffer("inv_freq", inv_freq / factor, persistent=False)
        self.attention_scaling = 1.0

    @torch.no_grad()
    def forward(self, x, position_ids):
        inv_freq_expanded = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1).to(x.device)
        position_ids_expanded = position_ids[:, None, :].float()
        freqs = (inv_freq_expanded.float() @ position_ids_expanded.float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos = emb.cos() * self.attention_scaling
        sin = emb.sin() * self.attention_scaling
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


def repeat_kv(hidden_states, n_rep):
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


def eager_attention_forward(module, query, key, value, attention_mask, scaling):
    key_states = repeat_kv(key, module.num_key_value_groups)
    value_states = repeat_kv(value, module.num_key_value_groups)
    attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling
    if attention_mask is not None:
        attn_weights = attn_weights + attention_mask[:, :, :, : key_states.shape[-2]]
    attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
    attn_output = torch.matmul(attn_weights, value_states)
    return attn_output.transpose(1, 2).contiguous(), attn_weights


class Gemma3Attention(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads, head_dim, query_pre_attn_scalar, layer_type):
        super().__init__()
        self.is_sliding = layer_type == "sliding_attention"
        self.head_dim = head_dim
        self.num_key_value_groups = num_heads // num_kv_heads
        self.scaling = query_pre_attn_scalar**-0.5
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = Gemma3RMSNorm(dim=head_dim)
        self.k_norm = Gemma3RMSNorm(dim=head_dim)

    def forward(self, hidden_states, position_embeddings, attention_mask):
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)
        query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        query_states = self.q_norm(query_states)
        key_states = self.k_norm(key_states)
        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        attn_output, _ = eager_attention_forward(
            self, query_states, key_states, value_states, attention_mask, scaling=self.scaling
        )
        return self.o_proj(attn_output.reshape(*input_shape, -1).contiguous())


class Gemma3DecoderLayer(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads, head_dim, inter, scalar, layer_type):
        super().__init__()
        self.attention_type = layer_type
        self.self_attn = Gemma3Attention(hidden_size, num_heads, num_kv_heads, head_dim, scalar, layer_type)
        self.mlp = Gemma3MLP(hidden_size, inter)
        self.input_layernorm = Gemma3RMSNorm(hidden_size)
        self.post_attention_layernorm = Gemma3RMSNorm(hidden_size)
        self.pre_feedforward_layernorm = Gemma3RMSNorm(hidden_size)
        self.post_feedforward_layernorm = Gemma3RMSNorm(hidden_size)

    def forward(self, hidden_states, position_embeddings, attention_mask=None):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(
            hidden_states=hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask
        )
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.pre_feedforward_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.post_feedforward_layernorm(hidden_states)
        return residual + hidden_states


class Model(nn.Module):
    """Gemma-3-like causal LM: a local and a global rotary table, per-head query/key norms, four norms a layer, left padding, shifted loss."""

    def __init__(self, vocab, hidden, heads, kv_heads, head_dim, inter, layers, window, pattern):
        super().__init__()
        self.window = window
        self.embed_tokens = Gemma3TextScaledWordEmbedding(vocab, hidden, 0, embed_scale=hidden**0.5)
        layer_types = ["sliding_attention" if bool((i + 1) % pattern) else "full_attention" for i in range(layers)]
        self.layers = nn.ModuleList(
            [Gemma3DecoderLayer(hidden, heads, kv_heads, head_dim, inter, 40, t) for t in layer_types]
        )
        self.norm = Gemma3RMSNorm(hidden)
        self.rotary_emb = Gemma3RotaryEmbedding(head_dim, base=1000000.0, factor=8.0)
        self.rotary_emb_local = Gemma3RotaryEmbedding(head_dim, base=10000.0)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        for name, p in self.named_parameters():
            nn.init.normal_(p, mean=0.0, std=0.02 if "embed" in name else 0.05)

    def _causal_masks(self, attention_mask, dtype):
        bsz, length = attention_mask.shape
        min_dtype = torch.finfo(dtype).min
        idx = torch.arange(length, device=attention_mask.device)
        causal = idx[None, :] <= idx[:, None]
        sliding = causal & (idx[:, None] - idx[None, :] < self.window)
        pad = attention_mask[:, None, None, :].bool()
        masks = {}
        for name, allowed in (("full_attention", causal), ("sliding_attention", sliding)):
            m = allowed[None, None] & pad
            # rows with nothing to attend to keep their own diagonal
            m = m | torch.eye(length, dtype=torch.bool, device=m.device)
            masks[name] = torch.where(m, torch.tensor(0.0, device=m.device, dtype=dtype), min_dtype)
        return masks

    def forward(self, input_ids, attention_mask, labels=None):
        hidden_states = self.embed_tokens(input_ids)
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids = position_ids.masked_fill(attention_mask == 0, 1)
        masks = self._causal_masks(attention_mask, hidden_states.dtype)
        position_embeddings = {
            "full_attention": self.rotary_emb(hidden_states, position_ids),
            "sliding_attention": self.rotary_emb_local(hidden_states, position_ids),
        }
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                position_embeddings=position_embeddings[layer.attention_type],
                attention_mask=masks[layer.attention_type],
            )
        hidden_states = self.norm(hidden_states)
        logits = self.lm_head(hidden_states)
        loss = None
        if labels is not None:
            logits = logits.float()
            shift_logits = logits[..., :-1, :]
            shift_labels = labels[..., 1:]
            shift_mask = attention_mask[:, -shift_logits.shape[1] :]
            flat_labels = shift_labels.masked_fill(shift_mask == 0, -100).reshape(-1)
            loss = F.cross_entropy(shift_logits.reshape(-1, shift_logits.size(-1)), flat_labels, ignore_index=-100)
        return {"loss": loss, "logits": logits}


def get_inputs():
    B, L, V = 3, 93, 1300
    ids = torch.randint(1, V, (B, L))
    start = torch.tensor([0, 21, 9])
    mask = (torch.arange(L)[None] >= start[:, None]).long()
    ids = ids * mask
    return [ids, mask, ids.clone()]


def get_init_inputs():
    return [1300, 160, 4, 2, 48, 432, 6, 24, 3]
