import math
from typing import List, Tuple

import torch
from torch import nn
import torch.nn.functional as F


class LayerNorm2d(nn.Module):
    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Attention(nn.Module):
    """Attention that may downscale the embedding after the projections."""

    def __init__(self, embedding_dim: int, num_heads: int, downsample_rate: int = 1) -> None:
        super().__init__()
        self.internal_dim = embedding_dim // downsample_rate
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embedding_dim, self.internal_dim)
        self.k_proj = nn.Linear(embedding_dim, self.internal_dim)
        self.v_proj = nn.Linear(embedding_dim, self.internal_dim)
        self.out_proj = nn.Linear(self.internal_dim, embedding_dim)

    def _separate_heads(self, x):
        b, n, c = x.shape
        return x.reshape(b, n, self.num_heads, c // self.num_heads).transpose(1, 2)

    def forward(self, q, k, v):
        q = self._separate_heads(self.q_proj(q))
        k = self._separate_heads(self.k_proj(k))
        v = self._separate_heads(self.v_proj(v))
        _, _, _, c_per_head = q.shape
        attn = q @ k.permute(0, 1, 3, 2)
        attn = attn / math.sqrt(c_per_head)
        attn = torch.softmax(attn, dim=-1)
        out = attn @ v
        return self.out_proj(out.transpose(1, 2).flatten(2))


class TwoWayBlock(nn.Module):
    def __init__(self, dim, heads, mlp_dim, skip_first_layer_pe) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        self.token_to_image = Attention(dim, heads, 2)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.ReLU(), nn.Linear(mlp_dim, dim))
        self.norm3 = nn.LayerNorm(dim)
        self.norm4 = nn.LayerNorm(dim)
        self.image_to_token = Attention(dim, heads, 2)
        self.skip = skip_first_layer_pe

    def forward(self, queries, keys, query_pe, key_pe) -> Tuple[torch.Tensor, torch.Tensor]:
        if self.skip:
            queries = self.self_attn(queries, queries, queries)
        else:
            q = queries + query_pe
            queries = queries + self.self_attn(q, q, queries)
        queries = self.norm1(queries)
        queries = self.norm2(queries + self.token_to_image(queries + query_pe, keys + key_pe, keys))
        queries = self.norm3(queries + self.mlp(queries))
        keys = keys + self.image_to_token(keys + key_pe, queries + query_pe, queries)
        return queries, self.norm4(keys)


class Model(nn.Module):
    def __init__(self, dim, heads, mlp_dim, depth, n_masks):
        super().__init__()
        self.n_tok = n_masks + 1
        self.iou_token = nn.Embedding(1, dim)
        self.mask_tokens = nn.Embedding(self.n_tok, dim)
        self.layers = nn.ModuleList([TwoWayBlock(dim, heads, mlp_dim, i == 0) for i in range(depth)])
        self.final_attn = Attention(dim, heads, 2)
        self.norm_final = nn.LayerNorm(dim)
        self.upscale = nn.Sequential(
            nn.ConvTranspose2d(dim, dim // 4, 2, 2), LayerNorm2d(dim // 4), nn.GELU(),
            nn.ConvTranspose2d(dim // 4, dim // 8, 2, 2), nn.GELU())
        mlp = lambda out: nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))
        self.hyper = nn.ModuleList([mlp(dim // 8) for _ in range(self.n_tok)])
        self.iou_head = mlp(self.n_tok)

    def forward(self, image_embedding, image_pe, sparse, dense):
        tokens = torch.cat([self.iou_token.weight, self.mask_tokens.weight], dim=0)
        tokens = torch.cat((tokens.unsqueeze(0).expand(sparse.size(0), -1, -1), sparse), dim=1)
        # one image, many prompts
        src = torch.repeat_interleave(image_embedding, tokens.shape[0], dim=0) + dense
        pos = torch.repeat_interleave(image_pe, tokens.shape[0], dim=0)
        b, c, h, w = src.shape
        q, k = tokens, src.flatten(2).permute(0, 2, 1)
        k_pe = pos.flatten(2).permute(0, 2, 1)
        for layer in self.layers:
            q, k = layer(q, k, tokens, k_pe)
        q = self.norm_final(q + self.final_attn(q + tokens, k + k_pe, k))
        iou_out, mask_out = q[:, 0, :], q[:, 1:1 + self.n_tok, :]
        up = self.upscale(k.transpose(1, 2).view(b, c, h, w))
        hyper_in: List[torch.Tensor] = [self.hyper[i](mask_out[:, i, :]) for i in range(self.n_tok)]
        hyper_in = torch.stack(hyper_in, dim=1)
        b, c, h, w = up.shape
        masks = (hyper_in @ up.view(b, c, h * w)).view(b, -1, h, w)
        return masks[:, 1:], self.iou_head(iou_out)[:, 1:]


def get_inputs():
    return [torch.randn(1, 256, 64, 64), torch.randn(1, 256, 64, 64), torch.randn(16, 3, 256), torch.randn(16, 256, 64, 64)]


def get_init_inputs():
    return [256, 8, 2048, 2, 3]
