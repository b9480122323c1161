import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

batch_size = 4
in_channels = 4
H, W = 48, 40
model_channels = 320
n_heads = 8
context_len, context_dim = 77, 768


def timestep_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32) / half)
    freqs = freqs.to(device=timesteps.device)
    args = timesteps[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class GroupNorm32(nn.GroupNorm):
    def forward(self, x):
        return F.group_norm(x.float(), self.num_groups, self.weight.float(), self.bias.float(), self.eps).type(x.dtype)


class ResBlock(nn.Module):
    def __init__(self, channels, emb_channels, out_channels=None):
        super().__init__()
        out_channels = out_channels or channels
        self.in_layers = nn.Sequential(GroupNorm32(32, channels), nn.SiLU(), nn.Conv2d(channels, out_channels, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(emb_channels, 2 * out_channels))
        self.out_norm = GroupNorm32(32, out_channels)
        self.out_rest = nn.Sequential(nn.SiLU(), nn.Dropout(p=0.0), nn.Conv2d(out_channels, out_channels, 3, padding=1))
        self.skip = nn.Identity() if out_channels == channels else nn.Conv2d(channels, out_channels, 1)

    def forward(self, x, emb):
        h = self.in_layers(x)
        emb_out = self.emb_layers(emb).type(h.dtype)
        while len(emb_out.shape) < len(h.shape):
            emb_out = emb_out[..., None]
        scale, shift = torch.chunk(emb_out, 2, dim=1)
        h = self.out_norm(h) * (1 + scale) + shift
        return self.skip(x) + self.out_rest(h)


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=8):
        super().__init__()
        context_dim = context_dim or query_dim
        self.heads = heads
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_k = nn.Linear(context_dim, query_dim, bias=False)
        self.to_v = nn.Linear(context_dim, query_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(query_dim, query_dim), nn.Dropout(0.0))

    def forward(self, x, context=None):
        context = x if context is None else context
        b, n, c = x.shape
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (t.view(b, -1, self.heads, c // self.heads).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))


class GEGLU(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.proj = nn.Linear(dim_in, dim_out * 2)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * F.gelu(gate)


class SpatialTransformer(nn.Module):
    def __init__(self, channels, n_heads, context_dim, use_checkpoint=True):
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.norm = GroupNorm32(32, channels, eps=1e-6)
        self.proj_in = nn.Conv2d(channels, channels, 1)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(channels) for _ in range(3))
        self.attn1 = CrossAttention(channels, None, n_heads)
        self.attn2 = CrossAttention(channels, context_dim, n_heads)
        self.ff = nn.Sequential(GEGLU(channels, 4 * channels), nn.Linear(4 * channels, channels))
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def _block(self, x, context):
        x = self.attn1(self.norm1(x)) + x
        x = self.attn2(self.norm2(x), context) + x
        return self.ff(self.norm3(x)) + x

    def forward(self, x, context):
        b, c, h, w = x.shape
        x_in = x
        x = self.proj_in(self.norm(x))
        x = x.view(b, c, h * w).permute(0, 2, 1).contiguous()
        if self.use_checkpoint and self.training and torch.is_grad_enabled():
            x = checkpoint(self._block, x, context, use_reentrant=False)
        else:
            x = self._block(x, context)
        x = x.permute(0, 2, 1).reshape(b, c, h, w)
        return self.proj_out(x) + x_in


class Model(nn.Module):
    """Two-level slice of a latent-diffusion UNet with sinusoidal time embedding, text
    cross attention, skip concatenation and checkpointed transformer blocks."""

    def __init__(self, in_channels, model_channels, n_heads, context_dim):
        super().__init__()
        ch, emb = model_channels, model_channels * 4
        self.model_channels = ch
        self.time_embed = nn.Sequential(nn.Linear(ch, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.conv_in = nn.Conv2d(in_channels, ch, 3, padding=1)
        self.down_res = ResBlock(ch, emb)
        self.down_attn = SpatialTransformer(ch, n_heads, context_dim)
        self.downsample = nn.Conv2d(ch, ch, 3, stride=2, padding=1)
        self.mid_res1 = ResBlock(ch, emb, 2 * ch)
        self.mid_attn = SpatialTransformer(2 * ch, n_heads, context_dim)
        self.mid_res2 = ResBlock(2 * ch, emb)
        self.upsample = nn.Conv2d(2 * ch, 2 * ch, 3, padding=1)
        self.up_blocks = nn.ModuleList([ResBlock(3 * ch, emb, ch), ResBlock(2 * ch, emb, ch)])
        self.up_attns = nn.ModuleList([SpatialTransformer(ch, n_heads, context_dim) for _ in range(2)])
        self.out = nn.Sequential(GroupNorm32(32, ch), nn.SiLU(), nn.Conv2d(ch, in_channels, 3, padding=1))

    def forward(self, x, timesteps, context):
        emb = self.time_embed(timestep_embedding(timesteps, self.model_channels).to(x.dtype))
        hs = []
        h = self.conv_in(x)
        hs.append(h)
        h = self.down_attn(self.down_res(h, emb), context)
        hs.append(h)
        h = self.downsample(h)
        h = self.mid_res2(self.mid_attn(self.mid_res1(h, emb), context), emb)
        h = self.upsample(F.interpolate(h, scale_factor=2, mode="nearest"))
        for res, attn in zip(self.up_blocks, self.up_attns):
            h = torch.cat([h, hs.pop()], dim=1)
            h = attn(res(h, emb), context)
        return self.out(h)


def get_inputs():
    return [torch.randn(batch_size, in_channels, H, W), torch.randint(0, 1000, (batch_size,)), torch.randn(batch_size, context_len, context_dim)]


def get_init_inputs():
    return [in_channels, model_channels, n_heads, context_dim]
