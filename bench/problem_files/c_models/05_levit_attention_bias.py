import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


class Conv2d_BN(nn.Sequential):
    def __init__(self, a, b, ks=1, stride=1, pad=0):
        super().__init__()
        self.add_module("c", nn.Conv2d(a, b, ks, stride, pad, bias=False))
        self.add_module("bn", nn.BatchNorm2d(b))


class Linear_BN(nn.Sequential):
    def __init__(self, a, b):
        super().__init__()
        self.add_module("c", nn.Linear(a, b, bias=False))
        self.add_module("bn", nn.BatchNorm1d(b))

    def forward(self, x):
        l, bn = self._modules.values()
        x = l(x)
        return bn(x.flatten(0, 1)).reshape_as(x)


class BN_Linear(nn.Sequential):
    def __init__(self, a, b):
        super().__init__()
        self.add_module("bn", nn.BatchNorm1d(a))
        self.add_module("l", nn.Linear(a, b))


class Residual(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, x):
        return x + self.m(x)


class Attention(nn.Module):
    def __init__(self, dim, key_dim, num_heads, attn_ratio, resolution):
        super().__init__()
        self.num_heads, self.key_dim = num_heads, key_dim
        self.scale = key_dim ** -0.5
        self.nh_kd = key_dim * num_heads
        self.d = int(attn_ratio * key_dim)
        self.dh = self.d * num_heads
        self.qkv = Linear_BN(dim, self.dh + self.nh_kd * 2)
        self.proj = nn.Sequential(nn.Hardswish(), Linear_BN(self.dh, dim))
        points = list(itertools.product(range(resolution[0]), range(resolution[1])))
        offsets, idxs = {}, []
        for p1 in points:
            for p2 in points:
                off = (abs(p1[0] - p2[0]), abs(p1[1] - p2[1]))
                offsets.setdefault(off, len(offsets))
                idxs.append(offsets[off])
        self.attention_biases = nn.Parameter(0.1 * torch.randn(num_heads, len(offsets)))
        self.register_buffer("attention_bias_idxs", torch.LongTensor(idxs).view(len(points), len(points)))

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x)
        q, k, v = qkv.view(B, N, self.num_heads, -1).split([self.key_dim, self.key_dim, self.d], dim=3)
        q = q.permute(0, 2, 1, 3)
        k = k.permute(0, 2, 1, 3)
        v = v.permute(0, 2, 1, 3)
        attn = (q @ k.transpose(-2, -1)) * self.scale + self.attention_biases[:, self.attention_bias_idxs]
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, self.dh)
        return self.proj(x)


class Subsample(nn.Module):
    def __init__(self, stride, resolution):
        super().__init__()
        self.stride, self.resolution = stride, resolution

    def forward(self, x):
        B, N, C = x.shape
        x = x.view(B, self.resolution[0], self.resolution[1], C)[:, :: self.stride, :: self.stride]
        return x.reshape(B, -1, C)


class AttentionSubsample(nn.Module):
    def __init__(self, in_dim, out_dim, key_dim, num_heads, attn_ratio, stride, res, res_):
        super().__init__()
        self.num_heads, self.key_dim = num_heads, key_dim
        self.scale = key_dim ** -0.5
        self.d = int(attn_ratio * key_dim)
        self.dh = self.d * num_heads
        self.n_out = res_[0] * res_[1]
        self.kv = Linear_BN(in_dim, self.dh + key_dim * num_heads)
        self.q = nn.Sequential(Subsample(stride, res), Linear_BN(in_dim, key_dim * num_heads))
        self.proj = nn.Sequential(nn.Hardswish(), Linear_BN(self.dh, out_dim))
        points = list(itertools.product(range(res[0]), range(res[1])))
        points_ = list(itertools.product(range(res_[0]), range(res_[1])))
        offsets, idxs = {}, []
        for p1 in points_:
            for p2 in points:
                off = (abs(p1[0] * stride - p2[0]), abs(p1[1] * stride - p2[1]))
                offsets.setdefault(off, len(offsets))
                idxs.append(offsets[off])
        self.attention_biases = nn.Parameter(0.1 * torch.randn(num_heads, len(offsets)))
        self.register_buffer("attention_bias_idxs", torch.LongTensor(idxs).view(len(points_), len(points)))

    def forward(self, x):
        B, N, C = x.shape
        k, v = self.kv(x).view(B, N, self.num_heads, -1).split([self.key_dim, self.d], dim=3)
        k = k.permute(0, 2, 1, 3)
        v = v.permute(0, 2, 1, 3)
        q = self.q(x).view(B, self.n_out, self.num_heads, self.key_dim).permute(0, 2, 1, 3)
        attn = (q @ k.transpose(-2, -1)) * self.scale + self.attention_biases[:, self.attention_bias_idxs]
        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, -1, self.dh)
        return self.proj(x)


def mlp(d):
    return nn.Sequential(Linear_BN(d, 2 * d), nn.Hardswish(), Linear_BN(2 * d, d))


class Model(nn.Module):
    """LeViT: conv stem, BN-only attention with learned offset biases, shrinking attention, hard-distillation loss."""

    def __init__(self, dims, key_dim, heads, depth, resolution, num_classes):
        super().__init__()
        d0, d1 = dims
        act = nn.Hardswish
        self.patch_embed = nn.Sequential(
            Conv2d_BN(3, d0 // 8, 3, 2, 1), act(), Conv2d_BN(d0 // 8, d0 // 4, 3, 2, 1), act(),
            Conv2d_BN(d0 // 4, d0 // 2, 3, 2, 1), act(), Conv2d_BN(d0 // 2, d0, 3, 2, 1),
        )
        res = (resolution, resolution)
        res_ = ((resolution + 1) // 2, (resolution + 1) // 2)
        blocks = []
        for _ in range(depth):
            blocks += [Residual(Attention(d0, key_dim, heads[0], 2, res)), Residual(mlp(d0))]
        blocks.append(AttentionSubsample(d0, d1, key_dim, d0 // key_dim, 4, 2, res, res_))
        blocks.append(Residual(mlp(d1)))
        for _ in range(depth):
            blocks += [Residual(Attention(d1, key_dim, heads[1], 2, res_)), Residual(mlp(d1))]
        self.blocks = nn.Sequential(*blocks)
        self.head = BN_Linear(d1, num_classes)
        self.head_dist = BN_Linear(d1, num_classes)

    def forward(self, x, labels, teacher_logits):
        x = self.patch_embed(x)
        x = x.flatten(2).transpose(1, 2)
        x = self.blocks(x)
        x = x.mean(1)
        cls, dist = self.head(x), self.head_dist(x)
        base_loss = F.cross_entropy(cls, labels, label_smoothing=0.1)
        distillation_loss = F.cross_entropy(dist, teacher_logits.argmax(dim=1))
        return base_loss * 0.5 + distillation_loss * 0.5, (cls + dist) / 2


def get_inputs():
    return [torch.randn(9, 3, 144, 144), torch.randint(0, 60, (9,)), torch.randn(9, 60)]


def get_init_inputs():
    return [(128, 192), 16, (4, 6), 2, 9, 60]
