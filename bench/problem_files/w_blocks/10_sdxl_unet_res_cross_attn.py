import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupNorm32(nn.GroupNorm):
    def forward(self, x):
        return F.group_norm(x.float(), self.num_groups, self.weight.float(), self.bias.float(), self.eps).type(x.dtype)


class ResnetBlock2D(nn.Module):
    def __init__(self, in_channels, out_channels, temb_channels, groups=32, eps=1e-5):
        super().__init__()
        self.norm1 = GroupNorm32(groups, in_channels, eps=eps)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.time_emb_proj = nn.Linear(temb_channels, out_channels)
        self.norm2 = GroupNorm32(groups, out_channels, eps=eps)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.nonlinearity = nn.SiLU()
        self.conv_shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, x, temb):
        h = self.conv1(self.nonlinearity(self.norm1(x)))
        h = h + self.time_emb_proj(self.nonlinearity(temb))[:, :, None, None]
        h = self.conv2(self.nonlinearity(self.norm2(h)))
        if self.conv_shortcut is not None:
            x = self.conv_shortcut(x)
        return x + h


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=8, dim_head=64):
        super().__init__()
        inner = heads * dim_head
        context_dim = query_dim if context_dim is None else context_dim
        self.heads, self.scale = heads, dim_head ** -0.5
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k = nn.Linear(context_dim, inner, bias=False)
        self.to_v = nn.Linear(context_dim, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, query_dim), nn.Identity())

    def head_to_batch(self, t):
        b, n, c = t.shape
        return t.reshape(b, n, self.heads, c // self.heads).permute(0, 2, 1, 3).reshape(b * self.heads, n, c // self.heads)

    def forward(self, x, context=None):
        context = x if context is None else context
        b, n, _ = x.shape
        q, k, v = map(self.head_to_batch, (self.to_q(x), self.to_k(context), self.to_v(context)))
        empty = torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device)
        sim = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=0, alpha=self.scale)
        attn = sim.softmax(dim=-1)
        out = torch.bmm(attn, v)
        out = out.reshape(b, self.heads, n, -1).permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.to_out(out)


class GEGLU(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.proj = nn.Linear(dim_in, dim_out * 2)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * F.gelu(gate)


class BasicTransformerBlock(nn.Module):
    def __init__(self, dim, heads, dim_head, context_dim):
        super().__init__()
        self.attn1 = CrossAttention(dim, None, heads, dim_head)
        self.attn2 = CrossAttention(dim, context_dim, heads, dim_head)
        self.ff = nn.Sequential(GEGLU(dim, dim * 4), nn.Linear(dim * 4, dim))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, context):
        x = self.attn1(self.norm1(x)) + x
        x = self.attn2(self.norm2(x), context=context) + x
        return self.ff(self.norm3(x)) + x


class Model(nn.Module):
    """An up-block stage: skip concat, resnet, spatial transformer, nearest upsample."""

    def __init__(self, channels, skip_channels, temb, heads, context_dim, depth):
        super().__init__()
        self.resnet = ResnetBlock2D(channels + skip_channels, channels, temb)
        self.norm = GroupNorm32(32, channels, eps=1e-6)
        self.proj_in = nn.Linear(channels, channels)
        self.blocks = nn.ModuleList([BasicTransformerBlock(channels, heads, channels // heads, context_dim) for _ in range(depth)])
        self.proj_out = nn.Linear(channels, channels)
        self.upsample = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x, skip, temb, context):
        x = self.resnet(torch.cat([x, skip], dim=1), temb)
        b, c, h, w = x.shape
        residual = x
        y = self.norm(x).permute(0, 2, 3, 1).reshape(b, h * w, c)
        y = self.proj_in(y)
        for blk in self.blocks:
            y = blk(y, context)
        y = self.proj_out(y).reshape(b, h, w, c).permute(0, 3, 1, 2).contiguous()
        x = y + residual
        return self.upsample(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def get_inputs():
    return [torch.randn(2, 640, 48, 48), torch.randn(2, 640, 48, 48), torch.randn(2, 1280), torch.randn(2, 77, 2048)]


def get_init_inputs():
    return [640, 640, 1280, 10, 2048, 2]
