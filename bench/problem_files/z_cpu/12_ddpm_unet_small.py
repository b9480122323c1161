import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def sinusoidal_embedding(t, dim):
    half_dim = dim // 2
    emb = math.log(10000) / (half_dim - 1)
    emb = torch.exp(torch.arange(half_dim, device=t.device).float() * -emb)
    emb = t[:, None].float() * emb[None, :]
    return torch.cat((emb.sin(), emb.cos()), dim=-1)


class WeightStandardizedConv2d(nn.Conv2d):
    def forward(self, x):
        weight = self.weight
        mean = weight.mean(dim=(1, 2, 3), keepdim=True)
        var = weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        normalized_weight = (weight - mean) * (var + 1e-5).rsqrt()
        return F.conv2d(x, normalized_weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Block(nn.Module):
    def __init__(self, dim, dim_out, groups=8):
        super().__init__()
        self.proj = WeightStandardizedConv2d(dim, dim_out, 3, padding=1)
        self.norm = nn.GroupNorm(groups, dim_out)
        self.act = nn.SiLU()

    def forward(self, x, scale_shift=None):
        x = self.norm(self.proj(x))
        if scale_shift is not None:
            scale, shift = scale_shift
            x = x * (scale + 1) + shift
        return self.act(x)


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, time_emb_dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_emb_dim, dim_out * 2))
        self.block1 = Block(dim, dim_out)
        self.block2 = Block(dim_out, dim_out)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, t):
        time_emb = self.mlp(t)[:, :, None, None]
        scale_shift = time_emb.chunk(2, dim=1)
        h = self.block1(x, scale_shift=scale_shift)
        h = self.block2(h)
        return h + self.res_conv(x)


class LinearAttention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=32):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        hidden = dim_head * heads
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, hidden * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(hidden, dim, 1), nn.GroupNorm(1, dim))

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=1)
        q, k, v = map(lambda t: t.reshape(b, self.heads, -1, h * w), qkv)
        q = q.softmax(dim=-2) * self.scale
        k = k.softmax(dim=-1)
        v = v / (h * w)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        out = torch.einsum("bhde,bhdn->bhen", context, q)
        return x + self.to_out(out.reshape(b, -1, h, w))


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=32):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, dim_head * heads * 3, 1, bias=False)
        self.to_out = nn.Conv2d(dim_head * heads, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = [t.reshape(b, self.heads, -1, h * w) for t in self.to_qkv(self.norm(x)).chunk(3, dim=1)]
        sim = torch.einsum("bhdi,bhdj->bhij", q * self.scale, k)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhdj->bhid", attn, v)
        return x + self.to_out(out.permute(0, 1, 3, 2).reshape(b, -1, h, w))


class Model(nn.Module):
    """DDPM training step on a small U-Net: q_sample by timestep, noise prediction, min-SNR weighted loss."""

    def __init__(self, dim, dim_mults, channels, timesteps, snr_gamma):
        super().__init__()
        self.snr_gamma = snr_gamma
        self.dim = dim
        time_dim = dim * 4
        self.init_conv = nn.Conv2d(channels, dim, 7, padding=3)
        dims = [dim] + [dim * m for m in dim_mults]
        in_out = list(zip(dims[:-1], dims[1:]))
        self.time_mlp = nn.Sequential(nn.Linear(dim, time_dim), nn.GELU(), nn.Linear(time_dim, time_dim))
        self.downs = nn.ModuleList([])
        self.ups = nn.ModuleList([])
        for i, (d_in, d_out) in enumerate(in_out):
            last = i >= len(in_out) - 1
            self.downs.append(nn.ModuleList([
                ResnetBlock(d_in, d_in, time_dim), LinearAttention(d_in),
                nn.Conv2d(d_in, d_out, 3, padding=1) if last else nn.Conv2d(d_in * 4, d_out, 1),
            ]))
        mid = dims[-1]
        self.mid_block1 = ResnetBlock(mid, mid, time_dim)
        self.mid_attn = Attention(mid)
        self.mid_block2 = ResnetBlock(mid, mid, time_dim)
        for i, (d_in, d_out) in enumerate(reversed(in_out)):
            last = i == len(in_out) - 1
            self.ups.append(nn.ModuleList([
                ResnetBlock(d_out + d_in, d_out, time_dim), LinearAttention(d_out),
                nn.Conv2d(d_out, d_in, 3, padding=1),
            ]))
        self.final_res = ResnetBlock(dim * 2, dim, time_dim)
        self.final_conv = nn.Conv2d(dim, channels, 1)

        x = torch.linspace(0, timesteps, timesteps + 1, dtype=torch.float64)
        ac = torch.cos(((x / timesteps) + 0.008) / 1.008 * math.pi * 0.5) ** 2
        betas = torch.clip(1 - (ac[1:] / ac[:-1]), 0, 0.999)
        alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
        self.register_buffer("sqrt_alphas_cumprod", alphas_cumprod.sqrt().float())
        self.register_buffer("sqrt_one_minus_alphas_cumprod", (1 - alphas_cumprod).sqrt().float())
        snr = (alphas_cumprod / (1 - alphas_cumprod)).float()
        self.register_buffer("loss_weight", snr.clamp(max=snr_gamma) / snr)

    def unet(self, x, time):
        x = self.init_conv(x)
        r = x
        t = self.time_mlp(sinusoidal_embedding(time, self.dim))
        h = []
        for i, (block, attn, down) in enumerate(self.downs):
            x = block(x, t)
            x = attn(x)
            h.append(x)
            if i < len(self.downs) - 1:
                b, c, hh, ww = x.shape
                x = x.view(b, c, hh // 2, 2, ww // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, c * 4, hh // 2, ww // 2)
            x = down(x)
        x = self.mid_block2(self.mid_attn(self.mid_block1(x, t)), t)
        for i, (block, attn, up) in enumerate(self.ups):
            x = torch.cat((x, h.pop()), dim=1)
            x = attn(block(x, t))
            if i < len(self.ups) - 1:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = up(x)
        x = torch.cat((x, r), dim=1)
        return self.final_conv(self.final_res(x, t))

    def forward(self, x_start, t, noise):
        x_start = x_start * 2 - 1
        a = self.sqrt_alphas_cumprod.gather(-1, t).reshape(-1, 1, 1, 1)
        s = self.sqrt_one_minus_alphas_cumprod.gather(-1, t).reshape(-1, 1, 1, 1)
        x = a * x_start + s * noise
        model_out = self.unet(x, t)
        loss = F.mse_loss(model_out, noise, reduction="none")
        loss = loss.reshape(loss.shape[0], -1).mean(dim=1)
        loss = loss * self.loss_weight.gather(-1, t)
        return loss.mean(), model_out


def get_inputs():
    return [torch.rand(4, 3, 32, 32), torch.randint(0, 1000, (4,)), torch.randn(4, 3, 32, 32)]


def get_init_inputs():
    return [32, [1, 2, 4], 3, 1000, 5.0]
