import torch
import torch.nn as nn
import torch.nn.functional as F


class DWConv(nn.Module):
    def __init__(self, dim):
        super(DWConv, self).__init__()
        self.dwconv = nn.Conv2d(dim, dim, 3, 1, 1, bias=True, groups=dim)

    def forward(self, x):
        return self.dwconv(x)


class LKA(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv0 = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.conv_spatial = nn.Conv2d(dim, dim, 7, stride=1, padding=9, groups=dim, dilation=3)
        self.conv1 = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        u = x.clone()
        attn = self.conv0(x)
        attn = self.conv_spatial(attn)
        attn = self.conv1(attn)
        return u * attn


class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.proj_1 = nn.Conv2d(d_model, d_model, 1)
        self.activation = nn.GELU()
        self.spatial_gating_unit = LKA(d_model)
        self.proj_2 = nn.Conv2d(d_model, d_model, 1)

    def forward(self, x):
        shorcut = x.clone()
        x = self.proj_1(x)
        x = self.activation(x)
        x = self.spatial_gating_unit(x)
        x = self.proj_2(x)
        x = x + shorcut
        return x


class Block(nn.Module):
    def __init__(self, dim, mlp_ratio):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(dim)
        self.attn = Attention(dim)
        self.norm2 = nn.BatchNorm2d(dim)
        hidden = int(dim * mlp_ratio)
        self.fc1 = nn.Conv2d(dim, hidden, 1)
        self.dw = DWConv(hidden)
        self.fc2 = nn.Conv2d(hidden, dim, 1)
        self.layer_scale_1 = nn.Parameter(0.1 * torch.ones((dim)), requires_grad=True)
        self.layer_scale_2 = nn.Parameter(0.1 * torch.ones((dim)), requires_grad=True)

    def forward(self, x):
        x = x + self.layer_scale_1.unsqueeze(-1).unsqueeze(-1) * self.attn(self.norm1(x))
        x = x + self.layer_scale_2.unsqueeze(-1).unsqueeze(-1) * self.fc2(F.gelu(self.dw(self.fc1(self.norm2(x)))))
        return x


class OverlapPatchEmbed(nn.Module):
    def __init__(self, k, s, cin, dim):
        super().__init__()
        self.proj = nn.Conv2d(cin, dim, kernel_size=k, stride=s, padding=(k // 2, k // 2))
        self.norm = nn.BatchNorm2d(dim)

    def forward(self, x):
        x = self.norm(self.proj(x))
        _, _, H, W = x.shape
        return x, H, W


class NMF2D(nn.Module):
    """Matrix decomposition by multiplicative updates (the Hamburger head)."""

    def __init__(self, dim, rank, steps):
        super().__init__()
        self.steps = steps
        self.inv_t = 1.0
        self.register_buffer("bases0", F.normalize(torch.rand(1, dim, rank), dim=1))

    def forward(self, x):
        B, C, H, W = x.shape
        x = x.view(B, C, H * W)
        bases = self.bases0.repeat(B, 1, 1)
        coef = F.softmax(self.inv_t * torch.bmm(x.transpose(1, 2), bases), dim=-1)
        for _ in range(self.steps):
            numerator = torch.bmm(x.transpose(1, 2), bases)
            denominator = coef.bmm(bases.transpose(1, 2).bmm(bases))
            coef = coef * numerator / (denominator + 1e-6)
            numerator = torch.bmm(x, coef)
            denominator = bases.bmm(coef.transpose(1, 2).bmm(coef))
            bases = bases * numerator / (denominator + 1e-6)
        return torch.bmm(bases, coef.transpose(1, 2)).view(B, C, H, W)


class Model(nn.Module):
    """Visual attention network (large-kernel attention) with a Hamburger NMF segmentation head."""

    def __init__(self, embed_dims, mlp_ratios, depths, ham_channels, classes):
        super().__init__()
        self.num_stages = len(embed_dims)
        for i in range(self.num_stages):
            setattr(self, f"patch_embed{i + 1}", OverlapPatchEmbed(7 if i == 0 else 3, 4 if i == 0 else 2, 3 if i == 0 else embed_dims[i - 1], embed_dims[i]))
            setattr(self, f"block{i + 1}", nn.ModuleList([Block(embed_dims[i], mlp_ratios[i]) for _ in range(depths[i])]))
            setattr(self, f"norm{i + 1}", nn.LayerNorm(embed_dims[i]))
        self.squeeze = nn.Sequential(nn.Conv2d(sum(embed_dims), ham_channels, 1, bias=False), nn.GroupNorm(8, ham_channels), nn.ReLU())
        self.ham_in = nn.Conv2d(ham_channels, ham_channels, 1)
        self.ham = NMF2D(ham_channels, 16, 3)
        self.ham_out = nn.Sequential(nn.Conv2d(ham_channels, ham_channels, 1, bias=False), nn.GroupNorm(8, ham_channels))
        self.cls = nn.Conv2d(ham_channels, classes, 1)

    def forward(self, x):
        size = x.shape[2:]
        B = x.shape[0]
        outs = []
        for i in range(self.num_stages):
            x, H, W = getattr(self, f"patch_embed{i + 1}")(x)
            for blk in getattr(self, f"block{i + 1}"):
                x = blk(x)
            x = x.flatten(2).transpose(1, 2)
            x = getattr(self, f"norm{i + 1}")(x)
            x = x.reshape(B, H, W, -1).permute(0, 3, 1, 2).contiguous()
            outs.append(x)
        target = outs[0].shape[2:]
        feats = [F.interpolate(o, size=target, mode="bilinear", align_corners=False) for o in outs]
        z = self.squeeze(torch.cat(feats, dim=1))
        enjoy = F.relu(self.ham_in(z), inplace=True)
        enjoy = self.ham_out(self.ham(enjoy))
        z = F.relu(z + enjoy, inplace=True)
        return F.interpolate(self.cls(z), size=size, mode="bilinear", align_corners=False)


def get_inputs():
    return [torch.randn(2, 3, 120, 96)]


def get_init_inputs():
    return [[32, 64, 96], [4, 4, 4], [2, 2, 2], 64, 19]
