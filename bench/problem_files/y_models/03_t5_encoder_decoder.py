import math

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size, src_len, tgt_len = 8, 500, 114
vocab_size, d_model, d_kv, d_ff, num_heads, num_layers = 32128, 768, 64, 2048, 12, 4


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = (x * torch.rsqrt(variance + self.eps)).to(self.weight.dtype)
        return self.weight * x


class T5Attention(nn.Module):
    def __init__(self, d_model, d_kv, n_heads, is_decoder=False, has_bias=False, num_buckets=32, max_distance=128):
        super().__init__()
        self.is_decoder, self.has_bias = is_decoder, has_bias
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.n_heads, self.d_kv, self.inner_dim = n_heads, d_kv, n_heads * d_kv
        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.q.weight.data.normal_(mean=0.0, std=(d_model * d_kv) ** -0.5)
        if has_bias:
            self.relative_attention_bias = nn.Embedding(num_buckets, n_heads)

    def _relative_position_bucket(self, relative_position):
        num_buckets, relative_buckets = self.num_buckets, 0
        if not self.is_decoder:
            num_buckets //= 2
            relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        scale = (num_buckets - max_exact) / math.log(self.max_distance / max_exact)
        large = max_exact + (torch.log(relative_position.float() / max_exact) * scale).to(torch.long)
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return relative_buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, q_len, k_len, device):
        context = torch.arange(q_len, dtype=torch.long, device=device)[:, None]
        memory = torch.arange(k_len, dtype=torch.long, device=device)[None, :]
        values = self.relative_attention_bias(self._relative_position_bucket(memory - context))
        return values.permute([2, 0, 1]).unsqueeze(0)

    def forward(self, x, mask, kv=None, position_bias=None):
        bsz, q_len = x.shape[:2]
        kv = x if kv is None else kv
        q = self.q(x).view(bsz, -1, self.n_heads, self.d_kv).transpose(1, 2)
        k = self.k(kv).view(bsz, -1, self.n_heads, self.d_kv).transpose(1, 2)
        v = self.v(kv).view(bsz, -1, self.n_heads, self.d_kv).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            if self.has_bias:
                position_bias = self.compute_bias(q_len, kv.shape[1], x.device)
            else:
                position_bias = torch.zeros((1, self.n_heads, q_len, kv.shape[1]), device=x.device, dtype=scores.dtype)
            position_bias = position_bias + mask
        scores += position_bias
        attn = F.softmax(scores.float(), dim=-1).type_as(scores)
        out = torch.matmul(attn, v).transpose(1, 2).contiguous().view(bsz, -1, self.inner_dim)
        return self.o(out), position_bias


class T5Block(nn.Module):
    def __init__(self, d_model, d_kv, d_ff, n_heads, is_decoder, has_bias):
        super().__init__()
        self.is_decoder = is_decoder
        self.ln1 = T5LayerNorm(d_model)
        self.self_attn = T5Attention(d_model, d_kv, n_heads, is_decoder, has_bias)
        if is_decoder:
            self.ln_cross = T5LayerNorm(d_model)
            self.cross_attn = T5Attention(d_model, d_kv, n_heads, True, False)
        self.ln2 = T5LayerNorm(d_model)
        self.wi_0, self.wi_1 = (nn.Linear(d_model, d_ff, bias=False) for _ in range(2))
        self.wo = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x, mask, bias=None, enc=None, enc_mask=None, cross_bias=None):
        h, bias = self.self_attn(self.ln1(x), mask, position_bias=bias)
        x = x + h
        if self.is_decoder:
            h, cross_bias = self.cross_attn(self.ln_cross(x), enc_mask, kv=enc, position_bias=cross_bias)
            x = x + h
        h = self.ln2(x)
        x = x + self.wo(F.gelu(self.wi_0(h), approximate="tanh") * self.wi_1(h))
        return x, bias, cross_bias


class Model(nn.Module):
    """T5-style encoder-decoder with bucketed relative position bias shared over layers,
    tied and rescaled output head, label shifting and loss inside forward."""

    def __init__(self, vocab_size, d_model, d_kv, d_ff, num_heads, num_layers):
        super().__init__()
        self.d_model = d_model
        self.shared = nn.Embedding(vocab_size, d_model)
        self.encoder = nn.ModuleList([T5Block(d_model, d_kv, d_ff, num_heads, False, i == 0) for i in range(num_layers)])
        self.decoder = nn.ModuleList([T5Block(d_model, d_kv, d_ff, num_heads, True, i == 0) for i in range(num_layers)])
        self.enc_norm, self.dec_norm = T5LayerNorm(d_model), T5LayerNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        self.lm_head.weight = self.shared.weight

    def _shift_right(self, labels):
        shifted = labels.new_zeros(labels.shape)
        shifted[..., 1:] = labels[..., :-1].clone()
        return shifted.masked_fill_(shifted == -100, 0)

    def forward(self, input_ids, attention_mask, labels):
        x = self.shared(input_ids)
        min_value = torch.finfo(x.dtype).min
        enc_mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * min_value
        bias = None
        for block in self.encoder:
            x, bias, _ = block(x, enc_mask, bias)
        enc = self.enc_norm(x)

        y = self.shared(self._shift_right(labels))
        t = torch.arange(y.shape[1], device=y.device)
        causal = (t[None, :] <= t[:, None]).to(y.dtype)
        dec_mask = (1.0 - causal)[None, None] * min_value
        bias = cross_bias = None
        for block in self.decoder:
            y, bias, cross_bias = block(y, dec_mask, bias, enc, enc_mask, cross_bias)
        logits = self.lm_head(self.dec_norm(y) * (self.d_model**-0.5))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)
        return loss, logits, enc


def get_inputs():
    lengths = torch.randint(src_len // 2, src_len + 1, (batch_size,))
    mask = (torch.arange(src_len)[None] < lengths[:, None]).long()
    labels = torch.randint(1, vocab_size, (batch_size, tgt_len))
    labels[: batch_size // 2, -tgt_len // 4 :] = -100
    return [torch.randint(1, vocab_size, (batch_size, src_len)), mask, labels]


def get_init_inputs():
    return [vocab_size, d_model, d_kv, d_ff, num_heads, num_layers]
