import math

import torch
from torch import nn
from torch.nn import functional as F


def create_sin_embedding(positions, dim, max_period=10000.0):
    assert dim % 2 == 0
    half_dim = dim // 2
    adim = torch.arange(half_dim, device=positions.device, dtype=torch.float32).view(1, 1, -1)
    phase = positions / (max_period ** (adim / (half_dim - 1)))
    return torch.cat([torch.cos(phase), torch.sin(phase)], dim=-1)


class LayerScale(nn.Module):
    def __init__(self, channels, init=0.3):
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), init))

    def forward(self, x):
        return self.scale * x


class StreamingMultiheadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, causal=False, cross_attention=False):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.causal, self.cross_attention = causal, cross_attention
        in_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.in_proj_weight = in_proj.weight
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, query, key, value, attn_bias=None):
        if self.cross_attention:
            dim = self.in_proj_weight.shape[0] // 3
            q = F.linear(query, self.in_proj_weight[:dim])
            k = F.linear(key, self.in_proj_weight[dim : 2 * dim])
            v = F.linear(value, self.in_proj_weight[2 * dim :])
            q, k, v = [t.reshape(t.shape[0], t.shape[1], self.num_heads, -1) for t in (q, k, v)]
        else:
            projected = F.linear(query, self.in_proj_weight)
            b, t, _ = projected.shape
            packed = projected.reshape(b, t, 3, self.num_heads, -1)
            q, k, v = torch.unbind(packed, dim=2)
        if self.causal:
            T = q.shape[1]
            queries_pos = torch.arange(T, device=q.device).view(-1, 1)
            keys_pos = torch.arange(T, device=q.device).view(1, -1)
            delta = queries_pos - keys_pos
            valid = delta >= 0
            attn_bias = torch.where(valid, torch.zeros([], device=q.device, dtype=q.dtype), torch.full([], float("-inf"), device=q.device, dtype=q.dtype))
        q = q / q.shape[-1] ** 0.5
        pre_w = torch.einsum("bqhc,bkhc->bhqk", q, k)
        if attn_bias is not None:
            pre_w = pre_w + attn_bias
        w = torch.softmax(pre_w, dim=-1)
        x = torch.einsum("bhqk,bkhc->bqhc", w, v).to(q.dtype)
        return self.out_proj(x.reshape(x.shape[0], x.shape[1], self.embed_dim))


class StreamingTransformerLayer(nn.Module):
    def __init__(self, d_model, num_heads, dim_feedforward):
        super().__init__()
        self.self_attn = StreamingMultiheadAttention(d_model, num_heads, causal=True)
        self.layer_scale_1, self.layer_scale_2, self.layer_scale_cross = LayerScale(d_model), LayerScale(d_model), LayerScale(d_model)
        self.cross_attention = StreamingMultiheadAttention(d_model, num_heads, cross_attention=True)
        self.norm1, self.norm2, self.norm_cross = nn.LayerNorm(d_model), nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias=False)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=False)

    def forward(self, src, cross_attention_src=None, cross_bias=None):
        x = src
        y = self.norm1(x)
        x = x + self.layer_scale_1(self.self_attn(y, y, y))
        if cross_attention_src is not None:
            x = x + self.layer_scale_cross(
                self.cross_attention(self.norm_cross(x), cross_attention_src, cross_attention_src, attn_bias=cross_bias)
            )
        return x + self.layer_scale_2(self.linear2(F.gelu(self.linear1(self.norm2(x)))))


class DelayedPatternProvider:
    def __init__(self, delays):
        self.delays = list(delays)

    def layout(self, timesteps, device):
        # step s of the pattern holds timestep s - delay - 1 of each codebook; step 0 is the special token everywhere
        S = timesteps + max(self.delays) + 1
        steps = torch.arange(S, device=device)
        idx = torch.stack([steps - 1 - d for d in self.delays])
        valid = (idx >= 0) & (idx < timesteps)
        return idx.clamp(0, timesteps - 1), valid

    def build_pattern_sequence(self, z, special_token):
        B, K, T = z.shape
        idx, valid = self.layout(T, z.device)
        values = torch.gather(z, 2, idx[None].expand(B, -1, -1))
        return torch.where(valid[None], values, torch.full_like(values, special_token))

    def revert_pattern_logits(self, logits, timesteps):
        # logits [B, card, K, S]; the model output at step s predicts the content of step s + 1
        K = len(self.delays)
        t = torch.arange(timesteps, device=logits.device)
        cols = torch.stack([t + d for d in self.delays])
        cols = cols[None, None].expand(logits.shape[0], logits.shape[1], K, timesteps)
        return torch.gather(logits, 3, cols)


class Model(nn.Module):
    """MusicGen-like language model over four delayed codebooks with cross-attention to text states, and the per-codebook masked loss."""

    def __init__(self, n_q, card, dim, num_heads, num_layers, cond_dim):
        super().__init__()
        self.n_q, self.card = n_q, card
        self.pattern_provider = DelayedPatternProvider(range(n_q))
        self.emb = nn.ModuleList([nn.Embedding(card + 1, dim) for _ in range(n_q)])
        self.output_proj = nn.Linear(cond_dim, dim)
        self.layers = nn.ModuleList([StreamingTransformerLayer(dim, num_heads, 4 * dim) for _ in range(num_layers)])
        self.out_norm = nn.LayerNorm(dim)
        self.linears = nn.ModuleList([nn.Linear(dim, card, bias=False) for _ in range(n_q)])
        self.positional_scale = 1.0
        for depth, layer in enumerate(self.layers):
            for m in layer.modules():
                if isinstance(m, nn.Linear):
                    std = 1 / math.sqrt(m.in_features) / math.sqrt(2 * (depth + 1))
                    nn.init.trunc_normal_(m.weight, 0.0, std, a=-3 * std, b=3 * std)

    def lm(self, sequence, cond, cond_mask):
        B, K, S = sequence.shape
        input_ = sum([self.emb[k](sequence[:, k]) for k in range(K)])
        cond = self.output_proj(cond)
        cond = cond * cond_mask.unsqueeze(-1)
        cross_bias = torch.zeros(cond_mask.shape, device=cond.device, dtype=cond.dtype)
        cross_bias = cross_bias.masked_fill(cond_mask == 0, float("-inf"))[:, None, None]
        positions = torch.arange(S, device=sequence.device).view(1, -1, 1)
        x = input_ + self.positional_scale * create_sin_embedding(positions, input_.shape[-1])
        for layer in self.layers:
            x = layer(x, cross_attention_src=cond, cross_bias=cross_bias)
        x = self.out_norm(x)
        return torch.stack([self.linears[k](x) for k in range(K)], dim=1)

    def forward(self, codes, cond, cond_mask, padding_mask):
        B, K, T = codes.shape
        sequence = self.pattern_provider.build_pattern_sequence(codes, self.card)
        logits = self.lm(sequence[..., :-1], cond, cond_mask)  # [B, K, S, card]
        logits = logits.permute(0, 3, 1, 2)
        logits = self.pattern_provider.revert_pattern_logits(logits, T).permute(0, 2, 3, 1)
        mask = padding_mask[:, None, :].expand(B, K, T).bool()
        ce = torch.zeros([], device=codes.device)
        ce_per_codebook = []
        for k in range(K):
            logits_k = logits[:, k, ...].contiguous().view(-1, logits.size(-1))
            targets_k = codes[:, k, ...].contiguous().view(-1)
            mask_k = mask[:, k, ...].contiguous().view(-1)
            ce_k = F.cross_entropy(logits_k, targets_k, reduction="none")
            q_ce = (ce_k * mask_k).sum() / mask_k.sum()
            ce += q_ce
            ce_per_codebook.append(q_ce.detach())
        return ce / K, ce_per_codebook


def get_inputs():
    B, K, T, L = 3, 4, 75, 19
    codes = torch.randint(0, 320, (B, K, T))
    cond = torch.randn(B, L, 112)
    cond_mask = (torch.arange(L)[None] < torch.tensor([19, 7, 12])[:, None]).float()
    padding_mask = (torch.arange(T)[None] < torch.tensor([75, 75, 60])[:, None]).float()
    return [codes, cond, cond_mask, padding_mask]


def get_init_inputs():
    return [4, 320, 192, 6, 4, 112]
