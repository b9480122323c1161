# Phi-2 style: a single LayerNorm feeds attention and MLP, partial rotary (32 of 80 dims), biases everywhere.
import math
import torch
import torch.nn as nn


class PartialRotary(nn.Module):
    def __init__(self, rotary_dim, base=10000):
        super().__init__()
        self.rotary_dim = rotary_dim
        self.base = base

    def forward(self, qkv):
        # qkv: (b, s, 3, h, d); interleaved halves as in flash-attn's non-interleaved layout
        s, rd = qkv.shape[1], self.rotary_dim
        t = torch.arange(s, device=qkv.device, dtype=torch.float32)
        inv_freq = 1.0 / (self.base ** (torch.arange(0, rd, 2, device=qkv.device, dtype=torch.float32) / rd))
        freqs = torch.outer(t, inv_freq)
        c = torch.cos(freqs)[None, :, None, :]
        n = torch.sin(freqs)[None, :, None, :]

        q_rot, q_pass = qkv[:, :, 0, :, :rd], qkv[:, :, 0, :, rd:]
        k_rot, k_pass = qkv[:, :, 1, :, :rd], qkv[:, :, 1, :, rd:]
        q1, q2 = q_rot.chunk(2, dim=-1)
        k1, k2 = k_rot.chunk(2, dim=-1)
        q1, q2, k1, k2 = [t.to(dtype=torch.float32) for t in (q1, q2, k1, k2)]
        q_rot = torch.cat([q1 * c - q2 * n, q1 * n + q2 * c], dim=-1).to(qkv.dtype)
        k_rot = torch.cat([k1 * c - k2 * n, k1 * n + k2 * c], dim=-1).to(qkv.dtype)
        return torch.cat(
            [
                torch.cat([q_rot, q_pass], dim=-1).unsqueeze(2),
                torch.cat([k_rot, k_pass], dim=-1).unsqueeze(2),
                qkv[:, :, 2:3],
            ],
            dim=2,
        )


class SelfAttention(nn.Module):
    """einsum attention in the b s h d layout with a triangular additive mask."""

    def forward(self, qkv, key_padding_mask=None):
        b, s = qkv.shape[:2]
        q, k, v = qkv.unbind(dim=2)
        q, k = q.float(), k.float()
        scale = 1.0 / math.sqrt(q.shape[-1])
        scores = torch.einsum("bthd,bshd->bhts", q, k * scale)
        if key_padding_mask is not None:
            padding = torch.full((b, s), -10000.0, dtype=scores.dtype, device=scores.device)
            padding = padding.masked_fill(key_padding_mask, 0.0)
            scores = scores + padding[:, None, None, :]
        causal = torch.triu(torch.full((s, s), -10000.0, device=scores.device), 1)
        scores = scores + causal.to(dtype=scores.dtype)
        attn = torch.softmax(scores, dim=-1).to(v.dtype)
        return torch.einsum("bhts,bshd->bthd", attn, v)


class MLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU(approximate="tanh")
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class ParallelBlock(nn.Module):
    def __init__(self, dim, n_head, rotary_dim):
        super().__init__()
        self.n_head = n_head
        self.ln = nn.LayerNorm(dim, eps=1e-5)
        self.Wqkv = nn.Linear(dim, 3 * dim)
        self.rotary = PartialRotary(rotary_dim)
        self.inner_attn = SelfAttention()
        self.out_proj = nn.Linear(dim, dim)
        self.mlp = MLP(dim, 4 * dim)

    def forward(self, x, mask):
        residual = x
        h = self.ln(x)
        qkv = self.Wqkv(h)
        qkv = qkv.view(*qkv.shape[:2], 3, self.n_head, -1)
        ctx = self.inner_attn(self.rotary(qkv), mask)
        attn_out = self.out_proj(ctx.flatten(2))
        return attn_out + self.mlp(h) + residual


class Model(nn.Module):
    def __init__(self, dim, n_head, rotary_dim, n_layer):
        super().__init__()
        self.h = nn.ModuleList([ParallelBlock(dim, n_head, rotary_dim) for _ in range(n_layer)])

    def forward(self, x, lengths):
        mask = torch.arange(x.shape[1], device=x.device)[None, :] < lengths[:, None]
        for layer in self.h:
            x = layer(x, mask)
        return x


def get_inputs():
    return [torch.randn(2, 1024, 2560), torch.randint(512, 1025, (2,))]


def get_init_inputs():
    return [2560, 32, 32, 2]
