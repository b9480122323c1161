import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def timestep_embedding(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32) / half).to(t.device)
    args = t[:, None].float() * freqs[None]
    emb = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
    if dim % 2:
        emb = torch.cat([emb, torch.zeros_like(emb[:, :1])], dim=-1)
    return emb


def sincos_1d(dim, pos):
    omega = torch.arange(dim // 2, device=pos.device, dtype=torch.float32) / (dim / 2.0)
    omega = 1.0 / 10000 ** omega
    out = torch.einsum("m,d->md", pos.reshape(-1), omega)
    return torch.cat([out.sin(), out.cos()], dim=1)


class DiTBlock(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(hidden, hidden * 3), nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, hidden * 3), nn.Linear(hidden * 3, hidden)
        self.adaLN = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 6 * hidden))
        # "zero" init with a little noise so every branch is exercised
        nn.init.normal_(self.adaLN[-1].weight, std=0.02)
        nn.init.constant_(self.adaLN[-1].bias, 0)

    def attn(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))

    def forward(self, x, c):
        sh1, sc1, g1, sh2, sc2, g2 = self.adaLN(c).chunk(6, dim=1)
        x = x + g1.unsqueeze(1) * self.attn(modulate(self.norm1(x), sh1, sc1))
        h = F.gelu(self.fc1(modulate(self.norm2(x), sh2, sc2)), approximate="tanh")
        return x + g2.unsqueeze(1) * self.fc2(h)


class Model(nn.Module):
    """Tiny DiT: patchify, adaLN-zero blocks, label dropout, unpatchify."""

    def __init__(self, size, patch, in_ch, hidden, depth, heads, classes):
        super().__init__()
        self.p, self.c, self.g, self.classes = patch, in_ch, size // patch, classes
        self.x_embed = nn.Conv2d(in_ch, hidden, patch, stride=patch)
        self.t_mlp = nn.Sequential(nn.Linear(65, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.y_embed = nn.Embedding(classes + 1, hidden)
        self.blocks = nn.ModuleList([DiTBlock(hidden, heads) for _ in range(depth)])
        self.final_ada = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 2 * hidden))
        self.final = nn.Linear(hidden, patch * patch * in_ch * 2)

    def forward(self, x, t, y, drop):
        gy, gx = torch.meshgrid(torch.arange(self.g, device=x.device), torch.arange(self.g, device=x.device), indexing="ij")
        h = self.x_embed(x).flatten(2).transpose(1, 2)
        d = h.shape[-1]
        h = h + torch.cat([sincos_1d(d // 2, gy.float()), sincos_1d(d // 2, gx.float())], dim=1)[None]
        y = torch.where(drop, self.classes, y)
        c = self.t_mlp(timestep_embedding(t, 65)) + self.y_embed(y)
        for blk in self.blocks:
            h = blk(h, c)
        shift, scale = self.final_ada(c).chunk(2, dim=1)
        h = self.final(modulate(F.layer_norm(h, (d,), eps=1e-6), shift, scale))
        B = h.shape[0]
        h = h.reshape(B, self.g, self.g, self.p, self.p, 2 * self.c)
        h = torch.einsum("nhwpqc->nchpwq", h).reshape(B, 2 * self.c, self.g * self.p, self.g * self.p)
        eps, log_var = h.chunk(2, dim=1)
        return eps, log_var


def get_inputs():
    return [torch.randn(3, 3, 20, 20), torch.rand(3) * 1000, torch.randint(0, 10, (3,)), torch.rand(3) < 0.3]


def get_init_inputs():
    return [20, 4, 3, 48, 2, 3, 10]
