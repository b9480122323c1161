import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps).type(x.dtype)


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class MultiHeadAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = Linear(n_state, n_state)
        self.key = Linear(n_state, n_state, bias=False)
        self.value = Linear(n_state, n_state)
        self.out = Linear(n_state, n_state)

    def qkv_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None):
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        qk = (q * scale) @ (k * scale).transpose(-1, -2)
        if mask is not None:
            qk = qk + mask
        qk = qk.float()
        w = F.softmax(qk, dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), qk.detach()

    def forward(self, x: Tensor, k_cache: Tensor, v_cache: Tensor, grow: bool, mask: Optional[Tensor] = None):
        q = self.query(x)
        if grow:
            k = torch.cat([k_cache, self.key(x)], dim=1)
            v = torch.cat([v_cache, self.value(x)], dim=1)
        else:
            # cross attention: keys and values of the audio were computed once
            k, v = k_cache, v_cache
        wv, qk = self.qkv_attention(q, k, v, mask)
        return self.out(wv), k, v, qk


class CrossAttention(MultiHeadAttention):
    def __init__(self, n_state: int, n_head: int):
        super().__init__(n_state, n_head)
        del self.key, self.value


class ResidualAttentionBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = LayerNorm(n_state)
        self.cross_attn = CrossAttention(n_state, n_head)
        self.cross_attn_ln = LayerNorm(n_state)
        self.mlp = nn.Sequential(Linear(n_state, n_state * 4), nn.GELU(), Linear(n_state * 4, n_state))
        self.mlp_ln = LayerNorm(n_state)

    def forward(self, x, sk, sv, ck, cv):
        a, sk, sv, _ = self.attn(self.attn_ln(x), sk, sv, grow=True)
        x = x + a
        a, _, _, qk = self.cross_attn(self.cross_attn_ln(x), ck, cv, grow=False)
        x = x + a
        return x + self.mlp(self.mlp_ln(x)), sk, sv, qk


class Model(nn.Module):
    """One greedy / beam step of the Whisper large decoder (a few of its layers), tied output head."""

    def __init__(self, n_vocab: int, n_ctx: int, n_state: int, n_head: int, n_layer: int):
        super().__init__()
        self.token_embedding = nn.Embedding(n_vocab, n_state)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.positional_embedding = nn.Parameter(torch.randn(n_ctx, n_state) * 0.02)
        self.blocks = nn.ModuleList([ResidualAttentionBlock(n_state, n_head) for _ in range(n_layer)])
        self.ln = LayerNorm(n_state)

    def forward(self, tokens, self_k, self_v, cross_k, cross_v):
        offset = self_k.shape[2]
        x = self.token_embedding(tokens) + self.positional_embedding[offset: offset + tokens.shape[-1]]
        x = x.to(cross_k.dtype)
        new_k, new_v, qks = [], [], []
        for i, block in enumerate(self.blocks):
            x, k, v, qk = block(x, self_k[i], self_v[i], cross_k[i], cross_v[i])
            new_k.append(k)
            new_v.append(v)
            qks.append(qk)
        x = self.ln(x)
        logits = (x @ torch.transpose(self.token_embedding.weight.to(x.dtype), 0, 1)).float()
        logprobs = F.log_softmax(logits[:, -1], dim=-1)
        # alignment heads: averaged cross attention for word timestamps
        align = torch.stack(qks).softmax(-1).mean(dim=(0, 2))
        return logprobs, torch.stack(new_k), torch.stack(new_v), align


def get_inputs():
    L, B, D = 3, 40, 1280
    return [
        torch.randint(0, 51866, (B, 1)),
        torch.randn(L, B, 223, D), torch.randn(L, B, 223, D),
        torch.randn(L, B, 1500, D), torch.randn(L, B, 1500, D),
    ]


def get_init_inputs():
    return [51866, 448, 1280, 20, 3]
