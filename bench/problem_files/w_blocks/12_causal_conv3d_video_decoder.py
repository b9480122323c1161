import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalConv3d(nn.Conv3d):
    """Pads only the past in time; an optional cache of past frames replaces the padding."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._padding = (self.padding[2], self.padding[2], self.padding[1], self.padding[1], 2 * self.padding[0], 0)
        self.padding = (0, 0, 0)

    def forward(self, x, cache_x=None):
        padding = list(self._padding)
        if cache_x is not None and self._padding[4] > 0:
            x = torch.cat([cache_x, x], dim=2)
            padding[4] -= cache_x.shape[2]
        x = F.pad(x, padding)
        return super().forward(x)


class ChannelRMSNorm(nn.Module):
    def __init__(self, dim, images=False):
        super().__init__()
        shape = (dim, 1, 1) if images else (dim, 1, 1, 1)
        self.scale = dim ** 0.5
        self.gamma = nn.Parameter(torch.ones(shape))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.scale * self.gamma


class ResidualBlock(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.norm1 = ChannelRMSNorm(in_dim)
        self.conv1 = CausalConv3d(in_dim, out_dim, 3, padding=1)
        self.norm2 = ChannelRMSNorm(out_dim)
        self.conv2 = CausalConv3d(out_dim, out_dim, 3, padding=1)
        self.shortcut = CausalConv3d(in_dim, out_dim, 1) if in_dim != out_dim else nn.Identity()

    def forward(self, x, cache):
        h = self.shortcut(x)
        x = F.silu(self.norm1(x))
        new_cache = x[:, :, -2:]
        x = self.conv1(x, cache)
        x = self.conv2(F.silu(self.norm2(x)))
        return x + h, new_cache


class FrameAttention(nn.Module):
    """Single-head attention inside every frame."""

    def __init__(self, dim):
        super().__init__()
        self.norm = ChannelRMSNorm(dim, images=True)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        identity = x
        b, c, t, h, w = x.size()
        x = x.transpose(1, 2).reshape(b * t, c, h, w)
        x = self.norm(x)
        q, k, v = self.to_qkv(x).reshape(b * t, 1, c * 3, -1).permute(0, 1, 3, 2).contiguous().chunk(3, dim=-1)
        x = F.scaled_dot_product_attention(q, k, v)
        x = x.squeeze(1).permute(0, 2, 1).reshape(b * t, c, h, w)
        x = self.proj(x).view(b, t, c, h, w).transpose(1, 2)
        return x + identity


class Upsample3d(nn.Module):
    """Temporal x2 by a causal conv that doubles the channels, then nearest-exact spatial x2."""

    def __init__(self, dim):
        super().__init__()
        self.time_conv = CausalConv3d(dim, dim * 2, (3, 1, 1), padding=(1, 0, 0))
        self.conv = nn.Conv2d(dim, dim // 2, 3, padding=1)

    def forward(self, x):
        b, c, t, h, w = x.shape
        x = self.time_conv(x).reshape(b, 2, c, t, h, w)
        x = torch.stack((x[:, 0], x[:, 1]), 3).reshape(b, c, t * 2, h, w)
        x = x.permute(0, 2, 1, 3, 4).reshape(b * t * 2, c, h, w)
        x = F.interpolate(x.float(), scale_factor=(2.0, 2.0), mode="nearest-exact").type_as(x)
        x = self.conv(x)
        return x.view(b, t * 2, -1, 2 * h, 2 * w).permute(0, 2, 1, 3, 4)


class Model(nn.Module):
    def __init__(self, z_dim, dim):
        super().__init__()
        self.conv_in = CausalConv3d(z_dim, dim, 3, padding=1)
        self.res1 = ResidualBlock(dim, dim)
        self.attn = FrameAttention(dim)
        self.up = Upsample3d(dim)
        self.res2 = ResidualBlock(dim // 2, dim // 4)

    def forward(self, z, cache1):
        x = self.conv_in(z)
        x, new_cache = self.res1(x, cache1)
        x = self.up(self.attn(x))
        x, _ = self.res2(x, None)
        return x, new_cache


def get_inputs():
    return [torch.randn(1, 16, 4, 48, 64), torch.randn(1, 384, 2, 48, 64)]


def get_init_inputs():
    return [16, 384]
