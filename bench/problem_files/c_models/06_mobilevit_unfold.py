import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_1x1_bn(inp, oup):
    return nn.Sequential(nn.Conv2d(inp, oup, 1, 1, 0, bias=False), nn.BatchNorm2d(oup), nn.SiLU())


def conv_nxn_bn(inp, oup, kernal_size=3, stride=1):
    return nn.Sequential(nn.Conv2d(inp, oup, kernal_size, stride, 1, bias=False), nn.BatchNorm2d(oup), nn.SiLU())


class MV2Block(nn.Module):
    def __init__(self, inp, oup, stride=1, expansion=4):
        super().__init__()
        hidden = inp * expansion
        self.use_res = stride == 1 and inp == oup
        self.conv = nn.Sequential(
            nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.SiLU(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.SiLU(),
            nn.Conv2d(hidden, oup, 1, bias=False), nn.BatchNorm2d(oup),
        )

    def forward(self, x):
        return x + self.conv(x) if self.use_res else self.conv(x)


class SeparableSelfAttention(nn.Module):
    """MobileViTv2: attention with one context vector per pixel group."""

    def __init__(self, dim):
        super().__init__()
        self.qkv_proj = nn.Conv2d(dim, 1 + 2 * dim, 1)
        self.out_proj = nn.Conv2d(dim, dim, 1)
        self.dim = dim

    def forward(self, x):
        # x: [B, d, P, N]
        query, key, value = torch.split(self.qkv_proj(x), [1, self.dim, self.dim], dim=1)
        context_scores = F.softmax(query, dim=-1)
        context_vector = (key * context_scores).sum(dim=-1, keepdim=True)
        out = F.relu(value) * context_vector.expand_as(value)
        return self.out_proj(out)


class LinearAttnFFN(nn.Module):
    def __init__(self, dim, ffn):
        super().__init__()
        self.pre_norm_attn = nn.Sequential(nn.GroupNorm(1, dim), SeparableSelfAttention(dim))
        self.pre_norm_ffn = nn.Sequential(nn.GroupNorm(1, dim), nn.Conv2d(dim, ffn, 1), nn.SiLU(), nn.Conv2d(ffn, dim, 1))

    def forward(self, x):
        x = x + self.pre_norm_attn(x)
        x = x + self.pre_norm_ffn(x)
        return x


class MHA(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.scale = heads, dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x):
        # [b, p, n, d]; attention runs over n for every p
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(2, 3) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.to_out(out.transpose(2, 3).flatten(3))


class MobileViTBlock(nn.Module):
    """The v1 block: local conv, unfold by strides, transformer, fold, fusion conv."""

    def __init__(self, dim, depth, channel, patch, mlp_dim):
        super().__init__()
        self.ph, self.pw = patch
        self.conv1, self.conv2 = conv_nxn_bn(channel, channel), conv_1x1_bn(channel, dim)
        self.attn = nn.ModuleList([MHA(dim, 4, 16) for _ in range(depth)])
        self.ff = nn.ModuleList([nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mlp_dim), nn.SiLU(), nn.Linear(mlp_dim, dim)) for _ in range(depth)])
        self.conv3, self.conv4 = conv_1x1_bn(dim, channel), conv_nxn_bn(2 * channel, channel)

    def forward(self, x):
        y = x.clone()
        x = self.conv2(self.conv1(x))
        b, d, H, W = x.shape
        h, w = H // self.ph, W // self.pw
        x = x.reshape(b, d, h, self.ph, w, self.pw).permute(0, 3, 5, 2, 4, 1).reshape(b, self.ph * self.pw, h * w, d)
        for attn, ff in zip(self.attn, self.ff):
            x = attn(x) + x
            x = ff(x) + x
        x = x.reshape(b, self.ph, self.pw, h, w, d).permute(0, 5, 3, 1, 4, 2).reshape(b, d, H, W)
        x = self.conv3(x)
        return self.conv4(torch.cat((x, y), 1))


class MobileViTv2Block(nn.Module):
    def __init__(self, cin, dim, depth, patch):
        super().__init__()
        self.patch = patch
        self.local = nn.Sequential(nn.Conv2d(cin, cin, 3, 1, 1, groups=cin, bias=False), nn.BatchNorm2d(cin), nn.SiLU(), nn.Conv2d(cin, dim, 1, bias=False))
        self.glob = nn.Sequential(*[LinearAttnFFN(dim, 2 * dim) for _ in range(depth)], nn.GroupNorm(1, dim))
        self.proj = nn.Sequential(nn.Conv2d(dim, cin, 1, bias=False), nn.BatchNorm2d(cin))

    def forward(self, x):
        fm = self.local(x)
        B, C, H, W = fm.shape
        p = F.unfold(fm, kernel_size=self.patch, stride=self.patch).reshape(B, C, self.patch * self.patch, -1)
        p = self.glob(p)
        p = p.reshape(B, C * self.patch * self.patch, -1)
        fm = F.fold(p, (H, W), kernel_size=self.patch, stride=self.patch)
        return self.proj(fm)


class Model(nn.Module):
    """MobileViT hybrid: a v1 unfold-attention block, then v2 separable-attention blocks."""

    def __init__(self, channels, dims, num_classes):
        super().__init__()
        c0, c1, c2, c3 = channels
        self.conv1 = conv_nxn_bn(3, c0, stride=2)
        self.mv2 = nn.ModuleList([MV2Block(c0, c1), MV2Block(c1, c2, 2), MV2Block(c2, c2), MV2Block(c2, c3, 2)])
        self.mvit1 = MobileViTBlock(dims[0], 2, c2, (2, 2), dims[0] * 2)
        self.mvit2 = MobileViTv2Block(c3, dims[1], 2, 2)
        self.conv2 = conv_1x1_bn(c3, 4 * c3)
        self.fc = nn.Linear(4 * c3, num_classes, bias=False)

    def forward(self, x):
        x = self.conv1(x)
        for layer in self.mv2[:3]:
            x = layer(x)
        x = self.mvit1(x)
        x = self.mv2[3](x)
        x = self.mvit2(x)
        x = self.conv2(x)
        x = F.avg_pool2d(x, x.shape[-2:]).view(-1, x.shape[1])
        return self.fc(x)


def get_inputs():
    return [torch.randn(4, 3, 96, 80)]


def get_init_inputs():
    return [(16, 24, 48, 64), (64, 96), 120]
