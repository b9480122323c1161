from typing import Dict, Optional
import torch
import torch.nn as nn
import torch.nn.functional as F


class KVCache:
    """Preallocated ring of keys and values; plain Python object with an int cursor."""

    def __init__(self, b, h, size, d, like):
        self.k, self.v, self.pos = like.new_zeros(b, h, size, d), like.new_zeros(b, h, size, d), 0

    def append(self, k, v):
        n = k.shape[2]
        self.k[:, :, self.pos: self.pos + n] = k
        self.v[:, :, self.pos: self.pos + n].copy_(v)
        self.pos += n
        # cloned so that a later append does not disturb what backward saved
        return self.k[:, :, : self.pos].clone(), self.v[:, :, : self.pos].clone()


def rotate(x, cos, sin):
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class MixedAttention(nn.Module):
    """Even heads use rotary positions, odd heads ALiBi; a T5-like bucketed bias is added to all."""

    def __init__(self, dim, heads, kv_heads, max_len, buckets=16):
        super().__init__()
        self.h, self.kvh, self.d = heads, kv_heads, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * kv_heads * self.d, bias=False)
        self.o, self.rel = nn.Linear(dim, dim, bias=False), nn.Embedding(buckets, heads)
        self.qk_gain = nn.ParameterList([nn.Parameter(torch.ones(self.d)) for _ in range(2)])
        inv = 10000 ** (-torch.arange(0, self.d, 2).float() / self.d)
        ang = torch.outer(torch.arange(max_len).float(), inv)
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / heads) if i % 2 else 0.0 for i in range(heads)])
        self.register_buffer("slopes", slopes)
        self.register_buffer("is_rope", torch.arange(heads) % 2 == 0)
        self.buckets, self.max_len = buckets, max_len

    def bucket(self, dist):
        half = self.buckets // 2
        big = half + (torch.log2(dist.clamp_min(1).float() / half) * 2).long()
        return torch.where(dist < half, dist, big.clamp(max=self.buckets - 1))

    def forward(self, x, cache: Optional[KVCache] = None):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.h, self.d).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.kvh, self.d).permute(2, 0, 3, 1, 4)
        q = F.rms_norm(q, (self.d,), self.qk_gain[0])
        k = F.rms_norm(k, (self.d,), self.qk_gain[1])
        start = 0 if cache is None else cache.pos
        rep = self.h // self.kvh
        k, v = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
        cos, sin = self.cos[start: start + t], self.sin[start: start + t]
        pick = self.is_rope.view(1, -1, 1, 1)
        q = torch.where(pick, rotate(q, cos, sin), q)
        k = torch.where(pick, rotate(k, cos, sin), k)
        if cache is not None:
            k, v = cache.append(k, v)
        qi = torch.arange(start, start + t, device=x.device)[:, None]
        ki = torch.arange(k.shape[2], device=x.device)[None]
        dist = (qi - ki).clamp_min(0)
        bias = self.rel(self.bucket(dist)).permute(2, 0, 1) - self.slopes.view(-1, 1, 1) * dist
        bias = bias.masked_fill(ki > qi, float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Model(nn.Module):
    """Small decoder: prefill then token-by-token decode with KV caches, tied unembedding."""

    def __init__(self, vocab, dim, heads, kv_heads, layers, decode_steps):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(MixedAttention(dim, heads, kv_heads, 128) for _ in range(layers))
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU("tanh"),
                                              nn.Linear(2 * dim, dim)) for _ in range(layers))
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.emb.weight
        self.steps = decode_steps
        nn.init.normal_(self.emb.weight, std=0.08)

    def step(self, x, caches: Optional[Dict[int, KVCache]] = None):
        for i, (att, ff) in enumerate(zip(self.blocks, self.ff)):
            c = None if caches is None else caches.get(i)
            x = x + att(F.layer_norm(x, x.shape[-1:]), cache=c)
            x = x + ff(F.layer_norm(x, x.shape[-1:]))
        return x

    def forward(self, ids, soft_prompt=None, *, return_cache=True):
        x = self.emb(ids) * self.emb.embedding_dim ** 0.5
        if soft_prompt is not None:
            x = torch.cat((soft_prompt.expand(len(ids), -1, -1), x), 1)
        pre = x.shape[1] - self.steps
        a = self.blocks[0]
        caches = {i: KVCache(len(ids), a.h, x.shape[1], a.d, x) for i in range(len(self.blocks))}
        outs = [self.step(x[:, :pre], caches)]
        for t in range(pre, x.shape[1]):
            outs.append(self.step(x[:, t: t + 1], caches))
        h = torch.cat(outs, 1)
        full = self.step(x)
        logits = self.head(h)
        drift = (h - full).abs().mean()
        if return_cache:
            return logits, drift, caches[0].k[:, :, :pre], caches[len(caches) - 1].v
        return logits, drift


def get_inputs():
    return [torch.randint(0, 200, (2, 40)), torch.randn(1, 8, 96)]


def get_init_inputs():
    return [200, 96, 6, 3, 2, 6]
