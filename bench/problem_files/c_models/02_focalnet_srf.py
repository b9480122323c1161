import torch
import torch.nn as nn


class FocalModulation(nn.Module):
    def __init__(self, dim, focal_window, focal_level, focal_factor=2, use_postln_in_modulation=False, normalize_modulator=False):
        super().__init__()
        self.dim = dim
        self.focal_level = focal_level
        self.normalize_modulator = normalize_modulator
        self.f = nn.Linear(dim, 2 * dim + (focal_level + 1), bias=True)
        self.h = nn.Conv2d(dim, dim, kernel_size=1, stride=1, bias=True)
        self.act = nn.GELU()
        self.proj = nn.Linear(dim, dim)
        self.focal_layers = nn.ModuleList()
        for k in range(focal_level):
            kernel_size = focal_factor * k + focal_window
            self.focal_layers.append(
                nn.Sequential(nn.Conv2d(dim, dim, kernel_size, groups=dim, padding=kernel_size // 2, bias=False), nn.GELU())
            )
        self.ln = nn.LayerNorm(dim) if use_postln_in_modulation else None

    def forward(self, x):
        C = x.shape[-1]
        x = self.f(x).permute(0, 3, 1, 2).contiguous()
        q, ctx, gates = torch.split(x, (C, C, self.focal_level + 1), 1)
        ctx_all = 0
        for l in range(self.focal_level):
            ctx = self.focal_layers[l](ctx)
            ctx_all = ctx_all + ctx * gates[:, l : l + 1]
        ctx_global = self.act(ctx.mean(2, keepdim=True).mean(3, keepdim=True))
        ctx_all = ctx_all + ctx_global * gates[:, self.focal_level :]
        if self.normalize_modulator:
            ctx_all = ctx_all / (self.focal_level + 1)
        x_out = q * self.h(ctx_all)
        x_out = x_out.permute(0, 2, 3, 1).contiguous()
        if self.ln is not None:
            x_out = self.ln(x_out)
        return self.proj(x_out)


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class FocalBlock(nn.Module):
    def __init__(self, dim, window, level, postln, layerscale=1e-1):
        super().__init__()
        self.postln = postln
        self.norm1 = nn.LayerNorm(dim)
        self.modulation = FocalModulation(dim, window, level, use_postln_in_modulation=postln, normalize_modulator=postln)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, 4 * dim)
        self.gamma_1 = nn.Parameter(layerscale * torch.ones(dim))
        self.gamma_2 = nn.Parameter(layerscale * torch.ones(dim))

    def forward(self, x, H, W):
        B, L, C = x.shape
        shortcut = x
        x = x if self.postln else self.norm1(x)
        x = self.modulation(x.view(B, H, W, C)).view(B, H * W, C)
        x = x if not self.postln else self.norm1(x)
        x = shortcut + self.gamma_1 * x
        x = x + self.gamma_2 * (self.norm2(self.mlp(x)) if self.postln else self.mlp(self.norm2(x)))
        return x


class PatchEmbed(nn.Module):
    def __init__(self, cin, dim, patch):
        super().__init__()
        self.proj = nn.Conv2d(cin, dim, patch, patch)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = self.proj(x)
        H, W = x.shape[2:]
        return self.norm(x.flatten(2).transpose(1, 2)), H, W


class Model(nn.Module):
    """FocalNet-SRF image classifier with hierarchical depth-wise context and gates."""

    def __init__(self, dims, depths, windows, levels, num_classes):
        super().__init__()
        self.embeds = nn.ModuleList()
        self.stages = nn.ModuleList()
        cin = 3
        for i, (d, n) in enumerate(zip(dims, depths)):
            self.embeds.append(PatchEmbed(cin, d, 4 if i == 0 else 2))
            self.stages.append(nn.ModuleList([FocalBlock(d, windows[i], levels[i], postln=(i == 2)) for _ in range(n)]))
            cin = d
        self.norm = nn.LayerNorm(cin)
        self.head = nn.Linear(cin, num_classes)

    def forward(self, x):
        for embed, stage in zip(self.embeds, self.stages):
            x, H, W = embed(x)
            for blk in stage:
                x = blk(x, H, W)
            x = x.transpose(1, 2).reshape(x.shape[0], -1, H, W)
        x = self.norm(x.flatten(2).transpose(1, 2)).transpose(1, 2)
        return self.head(x.mean(-1))


def get_inputs():
    return [torch.randn(3, 3, 96, 128)]


def get_init_inputs():
    return [(48, 96, 160), (2, 2, 2), (3, 3, 5), (2, 3, 2), 50]
