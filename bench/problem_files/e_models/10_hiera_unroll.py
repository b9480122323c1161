import math
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F


def do_pool(x, stride):
    # Refer to `Unroll` to see how this performs a maxpool-Nd
    return x.view(x.shape[0], stride, -1, x.shape[-1]).max(dim=1).values


def undo_windowing(x, shape, mu_shape):
    D = len(shape)
    B, C = x.shape[0], x.shape[-1]
    num_MUs = [s // mu for s, mu in zip(shape, mu_shape)]
    x = x.view(B, *num_MUs, *mu_shape, C)
    permute = [0] + sum([list(p) for p in zip(range(1, 1 + D), range(1 + D, 1 + 2 * D))], []) + [len(x.shape) - 1]
    return x.permute(permute).reshape(B, *shape, C)


class Unroll(nn.Module):
    """Reorders the tokens such that patches are contiguous in memory."""

    def __init__(self, input_size, patch_stride, unroll_schedule):
        super().__init__()
        self.size = [i // s for i, s in zip(input_size, patch_stride)]
        self.schedule = unroll_schedule

    def forward(self, x):
        B, _, C = x.shape
        cur_size = self.size
        x = x.view(*([B] + cur_size + [C]))
        for strides in self.schedule:
            cur_size = [i // s for i, s in zip(cur_size, strides)]
            new_shape = [B] + sum([[i, s] for i, s in zip(cur_size, strides)], []) + [C]
            x = x.view(new_shape)
            L = len(new_shape)
            permute = [0] + list(range(2, L - 1, 2)) + list(range(1, L - 1, 2)) + [L - 1]
            x = x.permute(permute)
            x = x.flatten(0, len(strides))
            B *= math.prod(strides)
        return x.reshape(-1, math.prod(self.size), C)


class Reroll(nn.Module):
    """Undoes the "unroll" operation so that you can use intermediate features."""

    def __init__(self, input_size, patch_stride, unroll_schedule, stage_ends, q_pool):
        super().__init__()
        size = [i // s for i, s in zip(input_size, patch_stride)]
        self.schedule = {}
        for i in range(stage_ends[-1] + 1):
            self.schedule[i] = unroll_schedule, size
            if i in stage_ends[:q_pool]:
                if len(unroll_schedule) > 0:
                    size = [n // s for n, s in zip(size, unroll_schedule[0])]
                unroll_schedule = unroll_schedule[1:]

    def forward(self, x, block_idx):
        schedule, size = self.schedule[block_idx]
        B, N, C = x.shape
        D = len(size)
        cur_mu_shape = [1] * D
        for strides in schedule:
            x = x.view(B, *strides, N // math.prod(strides), *cur_mu_shape, C)
            L = len(x.shape)
            permute = [0, 1 + D] + sum([list(p) for p in zip(range(1, 1 + D), range(1 + D + 1, L - 1))], []) + [L - 1]
            x = x.permute(permute)
            for i in range(D):
                cur_mu_shape[i] *= strides[i]
            x = x.reshape(B, -1, *cur_mu_shape, C)
            N = x.shape[1]
        x = x.view(B, N, *cur_mu_shape, C)
        return undo_windowing(x, size, cur_mu_shape)


class MaskUnitAttention(nn.Module):
    def __init__(self, dim, dim_out, heads, q_stride=1, window_size=0, use_mask_unit_attn=False):
        super().__init__()
        self.dim, self.dim_out, self.heads, self.q_stride = dim, dim_out, heads, q_stride
        self.head_dim = dim_out // heads
        self.scale = (self.head_dim) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim_out)
        self.proj = nn.Linear(dim_out, dim_out)
        self.window_size, self.use_mask_unit_attn = window_size, use_mask_unit_attn

    def forward(self, x):
        B, N, _ = x.shape
        num_windows = (N // (self.q_stride * self.window_size)) if self.use_mask_unit_attn else 1
        qkv = self.qkv(x).reshape(B, -1, num_windows, 3, self.heads, self.head_dim).permute(3, 0, 4, 2, 1, 5)
        q, k, v = qkv[0], qkv[1], qkv[2]
        if self.q_stride > 1:
            # Refer to Unroll to see how this performs a maxpool-Nd
            q = q.view(B, self.heads, num_windows, self.q_stride, -1, self.head_dim).max(dim=3).values
        if hasattr(F, "scaled_dot_product_attention"):
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q * self.scale) @ k.transpose(-1, -2)
            x = attn.softmax(dim=-1) @ v
        x = x.transpose(1, 3).reshape(B, -1, self.dim_out)
        return self.proj(x)


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class HieraBlock(nn.Module):
    def __init__(self, dim, dim_out, heads, mlp_ratio=4.0, norm_layer=nn.LayerNorm, q_stride=1, window_size=0, use_mask_unit_attn=False):
        super().__init__()
        self.dim, self.dim_out = dim, dim_out
        self.norm1 = norm_layer(dim)
        self.attn = MaskUnitAttention(dim, dim_out, heads, q_stride, window_size, use_mask_unit_attn)
        self.norm2 = norm_layer(dim_out)
        self.mlp = Mlp(dim_out, int(dim_out * mlp_ratio))
        if dim != dim_out:
            self.proj = nn.Linear(dim, dim_out)

    def forward(self, x):
        # Attention + Q Pooling
        x_norm = self.norm1(x)
        if self.dim != self.dim_out:
            x = do_pool(self.proj(x_norm), stride=self.attn.q_stride)
        x = x + self.attn(x_norm)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Hiera: plain hierarchical ViT with unrolled mask units, max-pooled queries, and rerolled features of each stage."""

    def __init__(self, input_size, embed_dim, num_heads, stages, num_classes):
        super().__init__()
        q_pool, q_stride, mask_unit_size = 3, (2, 2), (8, 8)
        mask_unit_attn = (True, True, False, False)
        norm_layer = partial(nn.LayerNorm, eps=1e-6)
        patch_stride = (4, 4)
        depth = sum(stages)
        self.tokens_spatial_shape = [i // s for i, s in zip(input_size, patch_stride)]
        num_tokens = math.prod(self.tokens_spatial_shape)
        flat_mu_size = math.prod(mask_unit_size)
        flat_q_stride = math.prod(q_stride)
        self.stage_ends = [sum(stages[:i]) - 1 for i in range(1, len(stages) + 1)]
        self.patch_embed = nn.Conv2d(3, embed_dim, kernel_size=7, stride=4, padding=3)
        self.pos_embed = nn.Parameter(torch.zeros(1, num_tokens, embed_dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.unroll = Unroll(input_size, patch_stride, [q_stride] * len(self.stage_ends[:-1]))
        self.reroll = Reroll(input_size, patch_stride, [q_stride] * len(self.stage_ends[:-1]), self.stage_ends, q_pool)
        q_pool_blocks = [x + 1 for x in self.stage_ends[:q_pool]]
        cur_stage = 0
        self.blocks = nn.ModuleList()
        for i in range(depth):
            dim_out = embed_dim
            use_mask_unit_attn = mask_unit_attn[cur_stage]
            if i - 1 in self.stage_ends:
                dim_out = int(embed_dim * 2.0)
                num_heads = int(num_heads * 2.0)
                cur_stage += 1
                if i in q_pool_blocks:
                    flat_mu_size //= flat_q_stride
            self.blocks.append(
                HieraBlock(
                    dim=embed_dim, dim_out=dim_out, heads=num_heads, norm_layer=norm_layer,
                    q_stride=(flat_q_stride if i in q_pool_blocks else 1),
                    window_size=flat_mu_size, use_mask_unit_attn=use_mask_unit_attn,
                )
            )
            embed_dim = dim_out
        self.norm = norm_layer(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, x, return_intermediates=True):
        intermediates = []
        x = self.patch_embed(x)
        x = x.reshape(x.shape[0], x.shape[1], -1).transpose(2, 1)
        x = x + self.pos_embed
        x = self.unroll(x)
        for i, blk in enumerate(self.blocks):
            x = blk(x)
            if return_intermediates and i in self.stage_ends:
                intermediates.append(self.reroll(x, i))
        x = x.mean(dim=1)
        x = self.head(self.norm(x))
        if return_intermediates:
            return x, intermediates
        return x


def get_inputs():
    return [torch.randn(3, 3, 128, 96)]


def get_init_inputs():
    return [(128, 96), 48, 1, (1, 2, 3, 1), 60]
