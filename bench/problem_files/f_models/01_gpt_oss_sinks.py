import torch
import torch.nn as nn
import torch.nn.functional as F


class GptOssRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight * hidden_states).to(input_dtype)


class GptOssExperts(nn.Module):
    def __init__(self, num_experts, hidden_size, intermediate_size, limit=7.0):
        super().__init__()
        self.num_experts, self.hidden_size = num_experts, hidden_size
        self.gate_up_proj = nn.Parameter(torch.randn(num_experts, hidden_size, 2 * intermediate_size) * 0.07)
        self.gate_up_proj_bias = nn.Parameter(torch.randn(num_experts, 2 * intermediate_size) * 0.1)
        self.down_proj = nn.Parameter(torch.randn(num_experts, intermediate_size, hidden_size) * 0.07)
        self.down_proj_bias = nn.Parameter(torch.randn(num_experts, hidden_size) * 0.1)
        self.alpha = 1.702
        self.limit = limit

    def _apply_gate(self, gate_up):
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        glu = gate * torch.sigmoid(gate * self.alpha)
        return (up + 1) * glu

    def forward(self, hidden_states, routing_weights):
        batch_size = hidden_states.shape[0]
        hidden_states = hidden_states.reshape(-1, self.hidden_size)
        num_experts = routing_weights.shape[1]
        hidden_states = hidden_states.repeat(num_experts, 1).view(num_experts, -1, self.hidden_size)
        gate_up = torch.bmm(hidden_states, self.gate_up_proj) + self.gate_up_proj_bias[..., None, :]
        next_states = torch.bmm(self._apply_gate(gate_up), self.down_proj)
        next_states = next_states + self.down_proj_bias[..., None, :]
        next_states = next_states.view(num_experts, batch_size, -1, self.hidden_size)
        next_states = next_states * routing_weights.transpose(0, 1).view(num_experts, batch_size, -1)[..., None]
        return next_states.sum(dim=0)


class GptOssTopKRouter(nn.Module):
    def __init__(self, num_experts, top_k, hidden_dim):
        super().__init__()
        self.top_k, self.num_experts, self.hidden_dim = top_k, num_experts, hidden_dim
        self.weight = nn.Parameter(torch.randn(num_experts, hidden_dim) * 0.1)
        self.bias = nn.Parameter(torch.randn(num_experts) * 0.1)

    def forward(self, hidden_states):
        hidden_states = hidden_states.reshape(-1, self.hidden_dim)
        router_logits = F.linear(hidden_states, self.weight, self.bias)
        router_top_value, router_indices = torch.topk(router_logits, self.top_k, dim=-1)
        router_top_value = F.softmax(router_top_value, dim=1, dtype=router_top_value.dtype)
        router_scores = torch.zeros_like(router_logits).scatter_(1, router_indices, router_top_value)
        return router_logits, router_scores, router_indices


class YarnRotaryEmbedding(nn.Module):
    def __init__(self, dim, base, factor, original_max, beta_fast=32.0, beta_slow=1.0):
        super().__init__()
        pi = 3.141592653589793
        log = lambda v: float(torch.log(torch.tensor(float(v), dtype=torch.float64)))
        pos_freqs = base ** (torch.arange(0, dim, 2).float() / dim)
        find = lambda rot: dim * log(original_max / (rot * 2 * pi)) / (2 * log(base))
        low, high = max(find(beta_fast), 0), min(find(beta_slow), dim - 1)
        ramp = torch.clamp((torch.arange(dim // 2).float() - low) / (high - low + 1e-3), 0, 1)
        extrapolation_factor = 1 - ramp
        inv_freq = (1.0 / (factor * pos_freqs)) * (1 - extrapolation_factor) + (1.0 / pos_freqs) * extrapolation_factor
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.attention_scaling = 0.1 * log(factor) + 1.0

    @torch.no_grad()
    def forward(self, x, position_ids):
        inv_freq_expanded = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        freqs = (inv_freq_expanded @ position_ids[:, None, :].float()).transpose(1, 2)
        cos, sin = freqs.cos() * self.attention_scaling, freqs.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


def _apply_rotary_emb(x, cos, sin):
    first_half, second_half = torch.chunk(x, 2, dim=-1)
    return torch.cat((first_half * cos - second_half * sin, second_half * cos + first_half * sin), dim=-1)


class GptOssAttention(nn.Module):
    def __init__(self, hidden_size, heads, kv_heads, head_dim):
        super().__init__()
        self.head_dim, self.n_rep, self.scaling = head_dim, heads // kv_heads, head_dim**-0.5
        self.q_proj = nn.Linear(hidden_size, heads * head_dim)
        self.k_proj = nn.Linear(hidden_size, kv_heads * head_dim)
        self.v_proj = nn.Linear(hidden_size, kv_heads * head_dim)
        self.o_proj = nn.Linear(heads * head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, hidden_states, cos, sin, attention_mask):
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)
        query = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        key = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        query = _apply_rotary_emb(query, cos.unsqueeze(1), sin.unsqueeze(1))
        key = _apply_rotary_emb(key, cos.unsqueeze(1), sin.unsqueeze(1))
        key, value = key.repeat_interleave(self.n_rep, dim=1), value.repeat_interleave(self.n_rep, dim=1)
        attn_weights = torch.matmul(query, key.transpose(2, 3)) * self.scaling
        attn_weights = attn_weights + attention_mask[:, :, :, : key.shape[-2]]
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(query.shape[0], -1, query.shape[-2], -1)
        combined_logits = torch.cat([attn_weights, sinks], dim=-1)
        combined_logits = combined_logits - combined_logits.max(dim=-1, keepdim=True).values
        probs = F.softmax(combined_logits, dim=-1, dtype=combined_logits.dtype)
        scores = probs[..., :-1]  # drop the sink
        attn_output = torch.matmul(scores, value).transpose(1, 2).contiguous()
        return self.o_proj(attn_output.reshape(*input_shape, -1).contiguous())


class GptOssDecoderLayer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, head_dim, inter, experts, top_k):
        super().__init__()
        self.self_attn = GptOssAttention(hidden, heads, kv_heads, head_dim)
        self.router = GptOssTopKRouter(experts, top_k, hidden)
        self.experts = GptOssExperts(experts, hidden, inter)
        self.input_layernorm, self.post_attention_layernorm = GptOssRMSNorm(hidden), GptOssRMSNorm(hidden)

    def forward(self, hidden_states, cos, sin, mask):
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        router_logits, router_scores, _ = self.router(hidden_states)
        return residual + self.experts(hidden_states, router_scores), router_logits


class Model(nn.Module):
    """gpt-oss-like MoE decoder: attention sinks, alternating windows, YaRN, interleaved clamped SwiGLU experts."""

    def __init__(self, vocab, hidden, heads, kv_heads, head_dim, inter, layers, experts, top_k, window):
        super().__init__()
        self.window, self.num_experts, self.top_k = window, experts, top_k
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(
            [GptOssDecoderLayer(hidden, heads, kv_heads, head_dim, inter, experts, top_k) for _ in range(layers)]
        )
        self.norm = GptOssRMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.rotary_emb = YarnRotaryEmbedding(head_dim, 150000.0, 32.0, 4096)

    def forward(self, input_ids):
        hidden_states = self.embed_tokens(input_ids)
        n = input_ids.shape[1]
        q_idx, k_idx = torch.arange(n, device=input_ids.device)[:, None], torch.arange(n, device=input_ids.device)[None]
        causal = k_idx <= q_idx
        masks = []
        for allowed in (causal & (k_idx > q_idx - self.window), causal):
            m = torch.zeros(n, n, dtype=hidden_states.dtype, device=input_ids.device)
            masks.append(m.masked_fill(~allowed, torch.finfo(hidden_states.dtype).min)[None, None])
        cos, sin = self.rotary_emb(hidden_states, torch.arange(n, device=input_ids.device).unsqueeze(0))
        all_router_logits = []
        for i, layer in enumerate(self.layers):
            hidden_states, router_logits = layer(hidden_states, cos, sin, masks[i % 2])
            all_router_logits.append(router_logits)
        logits = self.lm_head(self.norm(hidden_states))
        # load balancing loss over the layers' routers
        routing_weights = F.softmax(torch.cat(all_router_logits, dim=0), dim=-1)
        _, selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)
        expert_mask = F.one_hot(selected_experts, self.num_experts)
        tokens_per_expert = torch.mean(expert_mask.float(), dim=0)
        aux_loss = torch.sum(tokens_per_expert * torch.mean(routing_weights, dim=0).unsqueeze(0)) * self.num_experts
        return {"logits": logits, "aux_loss": aux_loss}


def get_inputs():
    return [torch.randint(0, 900, (2, 75))]


def get_init_inputs():
    return [900, 192, 6, 2, 32, 128, 4, 6, 2, 16]
