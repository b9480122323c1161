import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def reglu(x):
    a, b = x.chunk(2, dim=-1)
    return a * F.relu(b)


class Tokenizer(nn.Module):
    def __init__(self, d_numerical, categories, d_token, bias=True):
        super().__init__()
        d_bias = d_numerical + len(categories)
        category_offsets = torch.tensor([0] + categories[:-1]).cumsum(0)
        self.register_buffer("category_offsets", category_offsets)
        self.category_embeddings = nn.Embedding(sum(categories), d_token)
        self.weight = nn.Parameter(torch.empty(d_numerical + 1, d_token))
        self.bias = nn.Parameter(torch.empty(d_bias, d_token)) if bias else None
        nn.init.kaiming_uniform_(self.category_embeddings.weight, a=math.sqrt(5))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            nn.init.kaiming_uniform_(self.bias, a=math.sqrt(5))

    def forward(self, x_num, x_cat):
        x_num = torch.cat([torch.ones(len(x_cat), 1, device=x_cat.device)] + [x_num], dim=1)
        x = self.weight[None] * x_num[:, :, None]
        x = torch.cat([x, self.category_embeddings(x_cat + self.category_offsets[None])], dim=1)
        if self.bias is not None:
            bias = torch.cat([torch.zeros(1, self.bias.shape[1], device=x.device), self.bias])
            x = x + bias[None]
        return x


class MultiheadAttention(nn.Module):
    def __init__(self, d, n_heads):
        super().__init__()
        self.W_q = nn.Linear(d, d)
        self.W_k = nn.Linear(d, d)
        self.W_v = nn.Linear(d, d)
        self.W_out = nn.Linear(d, d)
        self.n_heads = n_heads

    def _reshape(self, x):
        batch_size, n_tokens, d = x.shape
        d_head = d // self.n_heads
        return (x.reshape(batch_size, n_tokens, self.n_heads, d_head).transpose(1, 2)
                .reshape(batch_size * self.n_heads, n_tokens, d_head))

    def forward(self, x_q, x_kv):
        q, k, v = self.W_q(x_q), self.W_k(x_kv), self.W_v(x_kv)
        batch_size = len(q)
        d_head_key = k.shape[-1] // self.n_heads
        d_head_value = v.shape[-1] // self.n_heads
        n_q_tokens = q.shape[1]
        q = self._reshape(q)
        k = self._reshape(k)
        attention = F.softmax(q @ k.transpose(1, 2) / math.sqrt(d_head_key), dim=-1)
        x = attention @ self._reshape(v)
        x = (x.reshape(batch_size, self.n_heads, n_q_tokens, d_head_value).transpose(1, 2)
             .reshape(batch_size, n_q_tokens, self.n_heads * d_head_value))
        return self.W_out(x)


class Model(nn.Module):
    """FT-Transformer for tabular data: feature tokenizer, PreNorm blocks with ReGLU, CLS-only last layer."""

    def __init__(self, d_numerical, categories, d_token, n_layers, n_heads, d_ffn_factor, d_out):
        super().__init__()
        self.tokenizer = Tokenizer(d_numerical, categories, d_token)
        d_hidden = int(d_token * d_ffn_factor)
        self.layers = nn.ModuleList([])
        for layer_idx in range(n_layers):
            layer = nn.ModuleDict({
                "attention": MultiheadAttention(d_token, n_heads),
                "linear0": nn.Linear(d_token, d_hidden * 2),
                "linear1": nn.Linear(d_hidden, d_token),
                "norm1": nn.LayerNorm(d_token),
            })
            if layer_idx:
                layer["norm0"] = nn.LayerNorm(d_token)
            self.layers.append(layer)
        self.last_normalization = nn.LayerNorm(d_token)
        self.head = nn.Linear(d_token, d_out)

    def forward(self, x_num, x_cat):
        x = self.tokenizer(x_num, x_cat)
        for layer_idx, layer in enumerate(self.layers):
            is_last_layer = layer_idx + 1 == len(self.layers)
            x_residual = x
            if "norm0" in layer:
                x_residual = layer["norm0"](x_residual)
            x_residual = layer["attention"](x_residual[:, :1] if is_last_layer else x_residual, x_residual)
            if is_last_layer:
                x = x[:, : x_residual.shape[1]]
            x = x + x_residual
            x_residual = layer["norm1"](x)
            x_residual = layer["linear1"](reglu(layer["linear0"](x_residual)))
            x = x + x_residual
        x = x[:, 0]
        x = self.last_normalization(x)
        x = F.relu(x)
        return self.head(x).squeeze(-1)


def get_inputs():
    return [torch.randn(128, 14), torch.randint(0, 10, (128, 8))]


def get_init_inputs():
    return [14, [10, 16, 12, 24, 40, 11, 10, 50], 128, 3, 8, 1.3333, 1]
