import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PatchEmbed(nn.Module):
    def __init__(self, img_size=224, patch_size=14, in_chans=3, embed_dim=768):
        super().__init__()
        self.num_patches = (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        x = self.proj(x)
        return x.flatten(2).transpose(1, 2)


class LayerScale(nn.Module):
    def __init__(self, dim, init_values=1e-1):
        super().__init__()
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        return x * self.gamma


class SwiGLUFFN(nn.Module):
    def __init__(self, in_features, hidden_features):
        super().__init__()
        hidden_features = (int(hidden_features * 2 / 3) + 7) // 8 * 8
        self.w12 = nn.Linear(in_features, 2 * hidden_features)
        self.w3 = nn.Linear(hidden_features, in_features)

    def forward(self, x):
        x12 = self.w12(x)
        x1, x2 = x12.chunk(2, dim=-1)
        hidden = F.silu(x1) * x2
        return self.w3(hidden)


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.ls1 = LayerScale(dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = SwiGLUFFN(dim, int(dim * mlp_ratio))
        self.ls2 = LayerScale(dim)

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        x = x + self.ls2(self.mlp(self.norm2(x)))
        return x


class DINOHead(nn.Module):
    def __init__(self, in_dim, out_dim, hidden_dim=2048, bottleneck_dim=256):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(in_dim, hidden_dim), nn.GELU(),
            nn.Linear(hidden_dim, hidden_dim), nn.GELU(),
            nn.Linear(hidden_dim, bottleneck_dim),
        )
        self.prototypes = nn.Parameter(torch.randn(out_dim, bottleneck_dim) * 0.02)

    def forward(self, x):
        x = self.mlp(x)
        x = F.normalize(x, dim=-1, p=2, eps=1e-6)
        w = F.normalize(self.prototypes, dim=-1, p=2)
        return F.linear(x, w)


def koleo_loss(x, eps=1e-8):
    x = F.normalize(x, eps=eps, p=2, dim=-1)
    dots = torch.mm(x, x.t())
    n = x.shape[0]
    dots.view(-1)[:: (n + 1)].fill_(-1)
    idx = dots.detach().argmax(dim=1)
    dist = F.pairwise_distance(x, x[idx], 2, eps)
    return -torch.log(dist + eps).mean()


class Model(nn.Module):
    """DINOv2-style student (registers, LayerScale, SwiGLU) with the DINO, iBOT and KoLeo losses."""

    def __init__(self, img_size, patch_size, embed_dim, depth, num_heads, num_registers, out_dim,
                 student_temp, teacher_temp):
        super().__init__()
        self.student_temp = student_temp
        self.teacher_temp = teacher_temp
        self.num_registers = num_registers
        self.patch_embed = PatchEmbed(img_size, patch_size, 3, embed_dim)
        n = self.patch_embed.num_patches
        self.cls_token = nn.Parameter(torch.randn(1, 1, embed_dim) * 0.02)
        self.register_tokens = nn.Parameter(torch.randn(1, num_registers, embed_dim) * 0.02)
        self.mask_token = nn.Parameter(torch.randn(1, embed_dim) * 0.02)
        # position table stored at the pre-training resolution (37 x 37) and interpolated
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + 37 * 37, embed_dim) * 0.02)
        self.blocks = nn.ModuleList([Block(embed_dim, num_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.dino_head = DINOHead(embed_dim, out_dim)
        self.ibot_head = DINOHead(embed_dim, out_dim)
        self.register_buffer("teacher_prototypes", F.normalize(torch.randn(out_dim, 256), dim=-1))
        self.register_buffer("center", torch.zeros(1, out_dim))

    def interpolate_pos_encoding(self, n):
        class_pos = self.pos_embed[:, :1]
        patch_pos = self.pos_embed[:, 1:]
        dim = self.pos_embed.shape[-1]
        m = int(math.sqrt(patch_pos.shape[1]))
        s = int(math.sqrt(n))
        patch_pos = F.interpolate(
            patch_pos.reshape(1, m, m, dim).permute(0, 3, 1, 2), size=(s, s), mode="bicubic", antialias=False
        )
        patch_pos = patch_pos.permute(0, 2, 3, 1).view(1, -1, dim)
        return torch.cat((class_pos, patch_pos), dim=1)

    @torch.no_grad()
    def teacher_targets(self, feats):
        logits = F.normalize(feats, dim=-1) @ self.teacher_prototypes.t()
        return F.softmax((logits - self.center) / self.teacher_temp, dim=-1)

    def forward(self, images, mask_indices, teacher_cls, teacher_patch):
        B = images.shape[0]
        x = self.patch_embed(images)
        N = x.shape[1]
        masks = torch.zeros(B, N, dtype=torch.bool, device=x.device)
        masks = masks.scatter(1, mask_indices, True)
        x = torch.where(masks.unsqueeze(-1), self.mask_token.to(x.dtype).unsqueeze(0), x)
        x = torch.cat((self.cls_token.expand(B, -1, -1), x), dim=1)
        x = x + self.interpolate_pos_encoding(N)
        x = torch.cat((x[:, :1], self.register_tokens.expand(B, -1, -1), x[:, 1:]), dim=1)
        for blk in self.blocks:
            x = blk(x)
        x = self.norm(x)
        cls = x[:, 0]
        patches = x[:, 1 + self.num_registers:]

        # class-token loss
        t = self.teacher_targets(teacher_cls)
        lsm = F.log_softmax(self.dino_head(cls) / self.student_temp, dim=-1)
        dino = -(t * lsm).sum(dim=-1).mean()

        # masked patch loss: only masked positions go through the head
        flat_idx = (mask_indices + torch.arange(B, device=x.device).unsqueeze(1) * N).flatten()
        student_masked = torch.index_select(patches.flatten(0, 1), 0, flat_idx)
        t = self.teacher_targets(teacher_patch.flatten(0, 1))
        lsm = F.log_softmax(self.ibot_head(student_masked) / self.student_temp, dim=-1)
        ibot = -torch.sum(t * lsm, dim=-1)
        masks_weight = (1 / masks.sum(-1).clamp(min=1.0)).unsqueeze(-1).expand(-1, mask_indices.shape[1])
        ibot = (ibot.view(B, -1) * masks_weight).sum() / B

        koleo = koleo_loss(cls)
        return dino + ibot + 0.1 * koleo, cls


batch_size = 32
num_masked = 96


def get_inputs():
    images = torch.randn(batch_size, 3, 224, 224)
    mask_indices = torch.rand(batch_size, 256).argsort(dim=1)[:, :num_masked]
    teacher_cls = torch.randn(batch_size, 256)
    teacher_patch = torch.randn(batch_size, num_masked, 256)
    return [images, mask_indices, teacher_cls, teacher_patch]


def get_init_inputs():
    return [224, 14, 768, 4, 12, 4, 8192, 0.1, 0.07]
