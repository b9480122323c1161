import torch
import torch.nn as nn
import torch.nn.functional as F


class LayerScale(nn.Module):
    def __init__(self, dim, init_values=0.5, inplace=False):
        super().__init__()
        self.inplace = inplace
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        return x.mul_(self.gamma) if self.inplace else x * self.gamma


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.attn_drop, self.proj, self.proj_drop = nn.Dropout(0.0), nn.Linear(dim, dim), nn.Dropout(0.0)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class SwiGLUFFN(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        self.w12 = nn.Linear(dim, 2 * hidden)
        self.w3 = nn.Linear(hidden, dim)

    def forward(self, x):
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(x1) * x2)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(dim, 1e-6), Attention(dim, heads), LayerScale(dim)
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(dim, 1e-6), SwiGLUFFN(dim, 4 * dim), LayerScale(dim, inplace=True)

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class DinoVisionTransformer(nn.Module):
    def __init__(self, pretrain_grid, patch_size, dim, depth, heads, offset=0.1):
        super().__init__()
        self.patch_size, self.interpolate_offset = patch_size, offset
        self.patch_embed = nn.Conv2d(3, dim, patch_size, patch_size)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, pretrain_grid**2 + 1, dim) * 0.2)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, 1e-6)

    def interpolate_pos_encoding(self, x, w, h):
        npatch, N = x.shape[1] - 1, self.pos_embed.shape[1] - 1
        if npatch == N and w == h:
            return self.pos_embed
        class_pos_embed, patch_pos_embed = self.pos_embed[:, 0], self.pos_embed[:, 1:]
        dim = x.shape[-1]
        w0, h0 = w // self.patch_size + self.interpolate_offset, h // self.patch_size + self.interpolate_offset
        sqrt_N = N**0.5
        sx, sy = float(w0) / sqrt_N, float(h0) / sqrt_N
        patch_pos_embed = F.interpolate(
            patch_pos_embed.reshape(1, int(sqrt_N), int(sqrt_N), dim).permute(0, 3, 1, 2), scale_factor=(sx, sy), mode="bicubic"
        )
        assert int(w0) == patch_pos_embed.shape[-2] and int(h0) == patch_pos_embed.shape[-1]
        patch_pos_embed = patch_pos_embed.permute(0, 2, 3, 1).view(1, -1, dim)
        return torch.cat((class_pos_embed.unsqueeze(0), patch_pos_embed), dim=1)

    def get_intermediate_layers(self, x, n):
        B, nc, w, h = x.shape
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.interpolate_pos_encoding(x, w, h)
        output = []
        for i, blk in enumerate(self.blocks):
            x = blk(x)
            if i in n:
                output.append(x)
        outputs = [self.norm(out) for out in output]
        return tuple((out[:, 1:], out[:, 0]) for out in outputs)


class ResidualConvUnit(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.conv1 = nn.Conv2d(features, features, 3, 1, 1)
        self.conv2 = nn.Conv2d(features, features, 3, 1, 1)
        self.activation = nn.ReLU(False)

    def forward(self, x):
        out = self.conv1(self.activation(x))
        out = self.conv2(self.activation(out))
        return out + x


class FeatureFusionBlock(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.out_conv = nn.Conv2d(features, features, 1)
        self.resConfUnit1, self.resConfUnit2 = ResidualConvUnit(features), ResidualConvUnit(features)

    def forward(self, *xs, size=None):
        output = xs[0]
        if len(xs) == 2:
            output = output + self.resConfUnit1(xs[1])
        output = self.resConfUnit2(output)
        modifier = {"scale_factor": 2} if size is None else {"size": size}
        output = F.interpolate(output, **modifier, mode="bilinear", align_corners=True)
        return self.out_conv(output)


class DPTHead(nn.Module):
    def __init__(self, in_channels, features, out_channels):
        super().__init__()
        self.projects = nn.ModuleList([nn.Conv2d(in_channels, c, 1) for c in out_channels])
        self.resize_layers = nn.ModuleList(
            [
                nn.ConvTranspose2d(out_channels[0], out_channels[0], 4, 4),
                nn.ConvTranspose2d(out_channels[1], out_channels[1], 2, 2),
                nn.Identity(),
                nn.Conv2d(out_channels[3], out_channels[3], 3, 2, 1),
            ]
        )
        self.readout_projects = nn.ModuleList(
            [nn.Sequential(nn.Linear(2 * in_channels, in_channels), nn.GELU()) for _ in out_channels]
        )
        self.layer_rn = nn.ModuleList([nn.Conv2d(c, features, 3, 1, 1, bias=False) for c in out_channels])
        self.refinenet = nn.ModuleList([FeatureFusionBlock(features) for _ in out_channels])
        self.refinenet[3].resConfUnit1 = None
        self.output_conv1 = nn.Conv2d(features, features // 2, 3, 1, 1)
        self.output_conv2 = nn.Sequential(
            nn.Conv2d(features // 2, 32, 3, 1, 1), nn.ReLU(True), nn.Conv2d(32, 1, 1), nn.ReLU(True), nn.Identity()
        )

    def forward(self, out_features, patch_h, patch_w):
        out = []
        for i, (x, cls_token) in enumerate(out_features):
            readout = cls_token.unsqueeze(1).expand_as(x)
            x = self.readout_projects[i](torch.cat((x, readout), -1))
            x = x.permute(0, 2, 1).reshape((x.shape[0], x.shape[-1], patch_h, patch_w))
            out.append(self.layer_rn[i](self.resize_layers[i](self.projects[i](x))))
        path = self.refinenet[3](out[3], size=out[2].shape[2:])
        path = self.refinenet[2](path, out[2], size=out[1].shape[2:])
        path = self.refinenet[1](path, out[1], size=out[0].shape[2:])
        path = self.refinenet[0](path, out[0])
        x = self.output_conv1(path)
        x = F.interpolate(x, (int(patch_h * 14), int(patch_w * 14)), mode="bilinear", align_corners=True)
        return self.output_conv2(x)


def compute_scale_and_shift(prediction, target, mask):
    # the 2x2 least squares system, solved in closed form
    a_00 = torch.sum(mask * prediction * prediction, (1, 2))
    a_01 = torch.sum(mask * prediction, (1, 2))
    a_11 = torch.sum(mask, (1, 2))
    b_0 = torch.sum(mask * prediction * target, (1, 2))
    b_1 = torch.sum(mask * target, (1, 2))
    det = a_00 * a_11 - a_01 * a_01
    valid = det > 0
    safe = torch.where(valid, det, torch.ones_like(det))
    x_0 = torch.where(valid, (a_11 * b_0 - a_01 * b_1) / safe, torch.zeros_like(b_0))
    x_1 = torch.where(valid, (-a_01 * b_0 + a_00 * b_1) / safe, torch.zeros_like(b_1))
    return x_0, x_1


def gradient_loss(prediction, target, mask):
    M = torch.sum(mask, (1, 2))
    diff = torch.mul(mask, prediction - target)
    grad_x = torch.abs(diff[:, :, 1:] - diff[:, :, :-1])
    grad_x = torch.mul(torch.mul(mask[:, :, 1:], mask[:, :, :-1]), grad_x)
    grad_y = torch.abs(diff[:, 1:, :] - diff[:, :-1, :])
    grad_y = torch.mul(torch.mul(mask[:, 1:, :], mask[:, :-1, :]), grad_y)
    return torch.sum(torch.sum(grad_x, (1, 2)) + torch.sum(grad_y, (1, 2))) / torch.sum(M)


class Model(nn.Module):
    """Depth Anything: DINOv2 encoder with interpolated positions, DPT head with readout tokens, MiDaS's scale-and-shift-invariant loss."""

    def __init__(self, pretrain_grid, dim, depth, heads, features, out_channels):
        super().__init__()
        self.pretrained = DinoVisionTransformer(pretrain_grid, 14, dim, depth, heads)
        self.intermediate_layer_idx = [depth - 4, depth - 3, depth - 2, depth - 1]
        self.depth_head = DPTHead(dim, features, out_channels)
        self.scales = 3
        for m in self.depth_head.modules():
            if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.kaiming_normal_(m.weight, nonlinearity="linear")
        nn.init.constant_(self.depth_head.output_conv2[2].bias, 1.0)

    def forward(self, x, target, mask):
        h, w = x.shape[-2:]
        patch_h, patch_w = h // 14, w // 14
        features = self.pretrained.get_intermediate_layers(x, self.intermediate_layer_idx)
        depth = self.depth_head(features, patch_h, patch_w)
        depth = F.relu(depth).squeeze(1)
        scale, shift = compute_scale_and_shift(depth, target, mask)
        prediction_ssi = scale.view(-1, 1, 1) * depth + shift.view(-1, 1, 1)
        res = (prediction_ssi - target) ** 2
        loss = torch.sum(mask * res) / (2 * torch.sum(mask))
        for s in range(self.scales):
            step = pow(2, s)
            loss += 0.5 * gradient_loss(
                prediction_ssi[:, ::step, ::step], target[:, ::step, ::step], mask[:, ::step, ::step]
            )
        return {"depth": depth, "aligned": prediction_ssi, "loss": loss}


def get_inputs():
    target = torch.linspace(0.2, 3.0, 98)[None, :, None] + 0.3 * torch.randn(1, 98, 126)
    mask = torch.ones(1, 98, 126)
    mask[:, :9, 40:] = 0
    return [torch.randn(1, 3, 98, 126), target, mask]


def get_init_inputs():
    return [8, 192, 4, 3, 48, [32, 48, 64, 64]]
