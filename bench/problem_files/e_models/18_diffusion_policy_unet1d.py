import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        half_dim = self.dim // 2
        emb = math.log(10000) / (half_dim - 1)
        emb = torch.exp(torch.arange(half_dim, device=x.device) * -emb)
        emb = x[:, None] * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


class Downsample1d(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 3, 2, 1)

    def forward(self, x):
        return self.conv(x)


class Upsample1d(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.ConvTranspose1d(dim, dim, 4, 2, 1)

    def forward(self, x):
        return self.conv(x)


class Conv1dBlock(nn.Module):
    """Conv1d --> GroupNorm --> Mish"""

    def __init__(self, inp_channels, out_channels, kernel_size, n_groups=8):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv1d(inp_channels, out_channels, kernel_size, padding=kernel_size // 2),
            nn.GroupNorm(n_groups, out_channels),
            nn.Mish(),
        )

    def forward(self, x):
        return self.block(x)


class ConditionalResidualBlock1D(nn.Module):
    def __init__(self, in_channels, out_channels, cond_dim, kernel_size=3, n_groups=8, cond_predict_scale=False):
        super().__init__()
        self.blocks = nn.ModuleList(
            [Conv1dBlock(in_channels, out_channels, kernel_size, n_groups), Conv1dBlock(out_channels, out_channels, kernel_size, n_groups)]
        )
        cond_channels = out_channels
        if cond_predict_scale:
            cond_channels = out_channels * 2
        self.cond_predict_scale, self.out_channels = cond_predict_scale, out_channels
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(cond_dim, cond_channels), nn.Unflatten(-1, (-1, 1)))
        self.residual_conv = nn.Conv1d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x, cond):
        out = self.blocks[0](x)
        embed = self.cond_encoder(cond)
        if self.cond_predict_scale:
            embed = embed.reshape(embed.shape[0], 2, self.out_channels, 1)
            scale = embed[:, 0, ...]
            bias = embed[:, 1, ...]
            out = scale * out + bias
        else:
            out = out + embed
        out = self.blocks[1](out)
        return out + self.residual_conv(x)


class ConditionalUnet1D(nn.Module):
    def __init__(self, input_dim, global_cond_dim, diffusion_step_embed_dim, down_dims, kernel_size=5, n_groups=8):
        super().__init__()
        all_dims = [input_dim] + list(down_dims)
        start_dim = down_dims[0]
        dsed = diffusion_step_embed_dim
        self.diffusion_step_encoder = nn.Sequential(SinusoidalPosEmb(dsed), nn.Linear(dsed, dsed * 4), nn.Mish(), nn.Linear(dsed * 4, dsed))
        cond_dim = dsed + global_cond_dim
        in_out = list(zip(all_dims[:-1], all_dims[1:]))
        kw = dict(cond_dim=cond_dim, kernel_size=kernel_size, n_groups=n_groups, cond_predict_scale=True)
        mid_dim = all_dims[-1]
        self.mid_modules = nn.ModuleList([ConditionalResidualBlock1D(mid_dim, mid_dim, **kw) for _ in range(2)])
        self.down_modules = nn.ModuleList([])
        for ind, (dim_in, dim_out) in enumerate(in_out):
            is_last = ind >= (len(in_out) - 1)
            self.down_modules.append(
                nn.ModuleList(
                    [
                        ConditionalResidualBlock1D(dim_in, dim_out, **kw),
                        ConditionalResidualBlock1D(dim_out, dim_out, **kw),
                        Downsample1d(dim_out) if not is_last else nn.Identity(),
                    ]
                )
            )
        self.up_modules = nn.ModuleList([])
        for ind, (dim_in, dim_out) in enumerate(reversed(in_out[1:])):
            self.up_modules.append(
                nn.ModuleList(
                    [
                        ConditionalResidualBlock1D(dim_out * 2, dim_in, **kw),
                        ConditionalResidualBlock1D(dim_in, dim_in, **kw),
                        Upsample1d(dim_in),
                    ]
                )
            )
        self.final_conv = nn.Sequential(Conv1dBlock(start_dim, start_dim, kernel_size=kernel_size), nn.Conv1d(start_dim, input_dim, 1))

    def forward(self, sample, timestep, global_cond=None):
        sample = sample.moveaxis(-1, -2)
        timesteps = timestep.expand(sample.shape[0])
        global_feature = self.diffusion_step_encoder(timesteps)
        if global_cond is not None:
            global_feature = torch.cat([global_feature, global_cond], axis=-1)
        x = sample
        h = []
        for idx, (resnet, resnet2, downsample) in enumerate(self.down_modules):
            x = resnet(x, global_feature)
            x = resnet2(x, global_feature)
            h.append(x)
            x = downsample(x)
        for mid_module in self.mid_modules:
            x = mid_module(x, global_feature)
        for idx, (resnet, resnet2, upsample) in enumerate(self.up_modules):
            x = torch.cat((x, h.pop()), dim=1)
            x = resnet(x, global_feature)
            x = resnet2(x, global_feature)
            x = upsample(x)
        x = self.final_conv(x)
        return x.moveaxis(-1, -2)


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.GroupNorm(planes // 16, planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.GroupNorm(planes // 16, planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.GroupNorm(planes // 16, planes))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class SpatialSoftmax(nn.Module):
    """Robomimic's layer: the expected coordinates of each keypoint map."""

    def __init__(self, in_c, num_kp, h, w):
        super().__init__()
        self.nets = nn.Conv2d(in_c, num_kp, kernel_size=1)
        self.num_kp, self.h, self.w = num_kp, h, w
        self.temperature = nn.Parameter(torch.ones(1) * 1.0)
        pos_y, pos_x = torch.meshgrid(torch.linspace(-1.0, 1.0, h), torch.linspace(-1.0, 1.0, w), indexing="ij")
        self.register_buffer("pos_x", pos_x.reshape(1, h * w))
        self.register_buffer("pos_y", pos_y.reshape(1, h * w))

    def forward(self, feature):
        feature = self.nets(feature)
        feature = feature.reshape(-1, self.h * self.w)
        attention = F.softmax(feature / self.temperature, dim=-1)
        expected_x = torch.sum(self.pos_x * attention, dim=1, keepdim=True)
        expected_y = torch.sum(self.pos_y * attention, dim=1, keepdim=True)
        expected_xy = torch.cat([expected_x, expected_y], 1)
        return expected_xy.view(-1, self.num_kp, 2)


class Model(nn.Module):
    """Diffusion policy: image and state encoder, FiLM-conditioned one-dimensional UNet over action chunks, noise-prediction loss with padding."""

    def __init__(self, crop, action_dim, state_dim, n_obs_steps, num_kp, down_dims):
        super().__init__()
        self.crop, self.n_obs_steps = crop, n_obs_steps
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.GroupNorm(2, 32), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
            BasicBlock(32, 32), BasicBlock(32, 64, 2),
        )
        h, w = [-(-(-(-(-(-c // 2)) // 2)) // 2) for c in crop]
        self.pool = SpatialSoftmax(64, num_kp, h, w)
        self.out = nn.Linear(num_kp * 2, 48)
        self.unet = ConditionalUnet1D(action_dim, (48 + state_dim) * n_obs_steps, 64, down_dims)
        # squared cosine schedule
        t = torch.arange(101, dtype=torch.float64) / 100
        bar = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        betas = (1 - bar[1:] / bar[:-1]).clamp(max=0.999)
        self.register_buffer("alphas_cumprod", torch.cumprod(1.0 - betas, dim=0).float())
        self.register_buffer("action_mean", torch.linspace(-0.2, 0.2, action_dim))
        self.register_buffer("action_std", torch.linspace(0.5, 1.5, action_dim))
        self.register_buffer("img_mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("img_std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def encode_obs(self, images, state):
        B, T = images.shape[:2]
        img = images.flatten(end_dim=1)
        top, left = (img.shape[-2] - self.crop[0]) // 2, (img.shape[-1] - self.crop[1]) // 2
        img = img[..., top : top + self.crop[0], left : left + self.crop[1]]
        img = (img - self.img_mean) / self.img_std
        x = torch.flatten(self.pool(self.backbone(img)), start_dim=1)
        x = F.relu(self.out(x)).reshape(B, T, -1)
        return torch.cat([x, state], dim=-1).flatten(start_dim=1)

    def forward(self, images, state, action, action_is_pad, noise, timesteps):
        global_cond = self.encode_obs(images[:, : self.n_obs_steps], state[:, : self.n_obs_steps])
        trajectory = (action - self.action_mean) / self.action_std
        sqrt_alpha_prod = (self.alphas_cumprod[timesteps] ** 0.5).flatten()
        sqrt_one_minus = ((1 - self.alphas_cumprod[timesteps]) ** 0.5).flatten()
        while len(sqrt_alpha_prod.shape) < len(trajectory.shape):
            sqrt_alpha_prod = sqrt_alpha_prod.unsqueeze(-1)
            sqrt_one_minus = sqrt_one_minus.unsqueeze(-1)
        noisy_trajectory = sqrt_alpha_prod * trajectory + sqrt_one_minus * noise
        pred = self.unet(noisy_trajectory, timesteps, global_cond=global_cond)
        loss = F.mse_loss(pred, noise, reduction="none")
        in_episode_bound = ~action_is_pad
        loss = loss * in_episode_bound.unsqueeze(-1)
        return {"loss": loss.mean(), "pred": pred}


def get_inputs():
    B, To, H, A = 6, 2, 16, 7
    pad = torch.arange(H)[None] >= torch.tensor([16, 16, 11, 16, 14, 8])[:, None]
    return [
        torch.rand(B, To, 3, 80, 96),
        torch.randn(B, To, 9),
        torch.randn(B, H, A),
        pad,
        torch.randn(B, H, A),
        torch.tensor([3, 41, 77, 12, 98, 60]),
    ]


def get_init_inputs():
    return [(72, 84), 7, 9, 2, 24, (64, 128, 192)]
