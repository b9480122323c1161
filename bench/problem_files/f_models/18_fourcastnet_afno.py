import torch
import torch.nn as nn
import torch.nn.functional as F


class Mlp(nn.Module):
    def __init__(self, in_features, hidden_features, drop=0.0):
        super().__init__()
        self.fc1, self.act = nn.Linear(in_features, hidden_features), nn.GELU()
        self.fc2, self.drop = nn.Linear(hidden_features, in_features), nn.Dropout(drop)

    def forward(self, x):
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop(x)
        x = self.fc2(x)
        return self.drop(x)


class AFNO2D(nn.Module):
    def __init__(self, hidden_size, num_blocks=8, sparsity_threshold=0.01, hard_thresholding_fraction=1, hidden_size_factor=1):
        super().__init__()
        assert hidden_size % num_blocks == 0
        self.hidden_size, self.sparsity_threshold, self.num_blocks = hidden_size, sparsity_threshold, num_blocks
        self.block_size = hidden_size // num_blocks
        self.hard_thresholding_fraction = hard_thresholding_fraction
        self.hidden_size_factor = hidden_size_factor
        self.scale = 0.2
        bs, hs = self.block_size, self.block_size * hidden_size_factor
        self.w1 = nn.Parameter(self.scale * torch.randn(2, num_blocks, bs, hs))
        self.b1 = nn.Parameter(self.scale * torch.randn(2, num_blocks, hs))
        self.w2 = nn.Parameter(self.scale * torch.randn(2, num_blocks, hs, bs))
        self.b2 = nn.Parameter(self.scale * torch.randn(2, num_blocks, bs))

    def forward(self, x):
        bias = x
        dtype = x.dtype
        x = x.float()
        B, H, W, C = x.shape
        x = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        x = x.reshape(B, H, W // 2 + 1, self.num_blocks, self.block_size)
        hidden = self.block_size * self.hidden_size_factor
        o1_real = torch.zeros([B, H, W // 2 + 1, self.num_blocks, hidden], device=x.device)
        o1_imag = torch.zeros([B, H, W // 2 + 1, self.num_blocks, hidden], device=x.device)
        o2_real = torch.zeros(x.shape, device=x.device)
        o2_imag = torch.zeros(x.shape, device=x.device)
        total_modes = H // 2 + 1
        kept_modes = int(total_modes * self.hard_thresholding_fraction)
        rows = slice(total_modes - kept_modes, total_modes + kept_modes)

        o1_real[:, rows, :kept_modes] = F.relu(
            torch.einsum("...bi,bio->...bo", x[:, rows, :kept_modes].real, self.w1[0])
            - torch.einsum("...bi,bio->...bo", x[:, rows, :kept_modes].imag, self.w1[1])
            + self.b1[0]
        )
        o1_imag[:, rows, :kept_modes] = F.relu(
            torch.einsum("...bi,bio->...bo", x[:, rows, :kept_modes].imag, self.w1[0])
            + torch.einsum("...bi,bio->...bo", x[:, rows, :kept_modes].real, self.w1[1])
            + self.b1[1]
        )
        o2_real[:, rows, :kept_modes] = (
            torch.einsum("...bi,bio->...bo", o1_real[:, rows, :kept_modes], self.w2[0])
            - torch.einsum("...bi,bio->...bo", o1_imag[:, rows, :kept_modes], self.w2[1])
            + self.b2[0]
        )
        o2_imag[:, rows, :kept_modes] = (
            torch.einsum("...bi,bio->...bo", o1_imag[:, rows, :kept_modes], self.w2[0])
            + torch.einsum("...bi,bio->...bo", o1_real[:, rows, :kept_modes], self.w2[1])
            + self.b2[1]
        )
        x = torch.stack([o2_real, o2_imag], dim=-1)
        x = F.softshrink(x, lambd=self.sparsity_threshold)
        x = torch.view_as_complex(x)
        x = x.reshape(B, H, W // 2 + 1, C)
        x = torch.fft.irfft2(x, s=(H, W), dim=(1, 2), norm="ortho")
        x = x.type(dtype)
        return x + bias


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        return x.div(keep) * (keep + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), device=x.device)).floor_()


class Block(nn.Module):
    def __init__(self, dim, mlp_ratio, num_blocks, fraction, drop_path=0.0, double_skip=True):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.filter = AFNO2D(dim, num_blocks, 0.01, fraction)
        self.drop_path = DropPath(drop_path)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.double_skip = double_skip

    def forward(self, x):
        residual = x
        x = self.norm1(x)
        x = self.filter(x)
        if self.double_skip:
            x = x + residual
            residual = x
        x = self.norm2(x)
        x = self.mlp(x)
        x = self.drop_path(x)
        return x + residual


class PatchEmbed(nn.Module):
    def __init__(self, img_size, patch_size, in_chans, embed_dim):
        super().__init__()
        self.img_size = img_size
        self.num_patches = (img_size[1] // patch_size[1]) * (img_size[0] // patch_size[0])
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        B, C, H, W = x.shape
        assert H == self.img_size[0] and W == self.img_size[1]
        return self.proj(x).flatten(2).transpose(1, 2)


class Model(nn.Module):
    """FourCastNet: adaptive Fourier neural operator blocks, normalized fields, a two-step rollout, latitude-weighted errors."""

    def __init__(self, img_size, patch_size, chans, embed_dim, depth, num_blocks, fraction, steps):
        super().__init__()
        self.img_size, self.patch_size, self.chans, self.steps = img_size, patch_size, chans, steps
        self.patch_embed = PatchEmbed(img_size, patch_size, chans, embed_dim)
        self.pos_embed = nn.Parameter(torch.randn(1, self.patch_embed.num_patches, embed_dim) * 0.1)
        self.pos_drop = nn.Dropout(p=0.0)
        self.h, self.w = img_size[0] // patch_size[0], img_size[1] // patch_size[1]
        self.blocks = nn.ModuleList([Block(embed_dim, 4.0, num_blocks, fraction) for _ in range(depth)])
        self.head = nn.Linear(embed_dim, chans * patch_size[0] * patch_size[1], bias=False)
        self.register_buffer("means", torch.randn(1, chans, 1, 1))
        self.register_buffer("stds", torch.rand(1, chans, 1, 1) + 0.5)
        lat = torch.linspace(90, -90, img_size[0])
        weight = torch.cos(3.1416 / 180.0 * lat)
        self.register_buffer("lat_weight", (img_size[0] * weight / weight.sum()).reshape(1, 1, -1, 1))

    def forward_features(self, x):
        B = x.shape[0]
        x = self.patch_embed(x)
        x = x + self.pos_embed
        x = self.pos_drop(x)
        x = x.reshape(B, self.h, self.w, -1)
        for blk in self.blocks:
            x = blk(x)
        return x

    def step(self, x):
        x = self.head(self.forward_features(x))
        p1, p2 = self.patch_size
        b, h, w, _ = x.shape
        # b h w (p1 p2 c_out) -> b c_out (h p1) (w p2)
        return x.view(b, h, w, p1, p2, self.chans).permute(0, 5, 1, 3, 2, 4).reshape(b, self.chans, h * p1, w * p2)

    def forward(self, inp, targets):
        x = (inp - self.means) / self.stds
        preds, rmse, acc, rel = [], [], [], 0.0
        for t in range(self.steps):
            x = self.step(x)
            tar = (targets[:, t] - self.means) / self.stds
            preds.append(x)
            rmse.append(torch.sqrt(torch.mean(self.lat_weight * (x - tar) ** 2.0, dim=(-1, -2))))
            num = torch.sum(self.lat_weight * x * tar, dim=(-1, -2))
            den = torch.sum(self.lat_weight * x * x, dim=(-1, -2)) * torch.sum(self.lat_weight * tar * tar, dim=(-1, -2))
            acc.append(num / torch.sqrt(den))
            diff_norms = torch.norm(x.reshape(x.shape[0], -1) - tar.reshape(x.shape[0], -1), 2, 1)
            rel = rel + torch.mean(diff_norms / torch.norm(tar.reshape(x.shape[0], -1), 2, 1))
        pred = torch.stack(preds, dim=1) * self.stds.unsqueeze(1) + self.means.unsqueeze(1)
        return pred, rel, torch.stack(rmse, 1), torch.stack(acc, 1)


def get_inputs():
    return [torch.randn(1, 6, 44, 76), torch.randn(1, 2, 6, 44, 76)]


def get_init_inputs():
    return [(44, 76), (4, 4), 6, 128, 3, 8, 0.8, 2]
