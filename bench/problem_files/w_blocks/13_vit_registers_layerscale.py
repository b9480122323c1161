import math
from typing import Optional

import torch
from torch import Tensor, nn
import torch.nn.functional as F


class PatchEmbed(nn.Module):
    def __init__(self, patch: int, dim: int):
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        _, _, H, W = x.shape
        assert H % self.patch == 0 and W % self.patch == 0
        return self.proj(x).flatten(2).transpose(1, 2)


class LayerScale(nn.Module):
    def __init__(self, dim: int, init_values: float = 1e-5):
        super().__init__()
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.proj = nn.Linear(dim, dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class SwiGLUFFNFused(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        self.w12 = nn.Linear(dim, 2 * hidden)
        self.w3 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(x1) * x2)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, mlp_ratio: float, init_values: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.ls1 = LayerScale(dim, init_values)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = SwiGLUFFNFused(dim, int(dim * mlp_ratio))
        self.ls2 = LayerScale(dim, init_values)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        x = x + self.ls2(self.mlp(self.norm2(x)))
        return x


class Model(nn.Module):
    """DINOv2-style stem + blocks: cls token, register tokens, resized position table, masked patches."""

    def __init__(self, patch, dim, heads, depth, n_reg, pretrain_grid, init_values):
        super().__init__()
        self.n_reg, self.grid, self.patch = n_reg, pretrain_grid, patch
        self.patch_embed = PatchEmbed(patch, dim)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 1e-2)
        self.register_tokens = nn.Parameter(torch.randn(1, n_reg, dim) * 1e-2)
        self.mask_token = nn.Parameter(torch.zeros(1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + pretrain_grid ** 2, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, 4.0, init_values) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def interpolate_pos_encoding(self, x: Tensor, h: int, w: int) -> Tensor:
        pos = self.pos_embed.float()
        cls_pos, patch_pos = pos[:, :1], pos[:, 1:]
        M, dim = self.grid, x.shape[-1]
        patch_pos = patch_pos.reshape(1, M, M, dim).permute(0, 3, 1, 2)
        patch_pos = F.interpolate(patch_pos, size=(h // self.patch, w // self.patch), mode="bicubic", antialias=False)
        patch_pos = patch_pos.permute(0, 2, 3, 1).view(1, -1, dim)
        return torch.cat((cls_pos, patch_pos), dim=1).to(x.dtype)

    def forward(self, img: Tensor, masks: Optional[Tensor] = None):
        B, _, h, w = img.shape
        x = self.patch_embed(img)
        if masks is not None:
            x = torch.where(masks.bool().unsqueeze(-1), self.mask_token.to(x.dtype).unsqueeze(0), x)
        x = torch.cat((self.cls_token.expand(B, -1, -1), x), dim=1)
        x = x + self.interpolate_pos_encoding(x, h, w)
        x = torch.cat((x[:, :1], self.register_tokens.expand(B, -1, -1), x[:, 1:]), dim=1)
        for blk in self.blocks:
            x = blk(x)
        x = self.norm(x)
        return x[:, 0], x[:, 1 + self.n_reg:]


def get_inputs():
    return [torch.randn(8, 3, 448, 448), torch.randint(0, 2, (8, 32 * 32))]


def get_init_inputs():
    return [14, 1024, 16, 2, 4, 37, 1.0]
