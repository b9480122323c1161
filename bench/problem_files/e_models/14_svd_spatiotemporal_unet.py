import math

import torch
import torch.nn.functional as F
from torch import nn


def get_timestep_embedding(timesteps, embedding_dim, flip_sin_to_cos=True, downscale_freq_shift=0):
    half_dim = embedding_dim // 2
    exponent = -math.log(10000) * torch.arange(start=0, end=half_dim, dtype=torch.float32, device=timesteps.device)
    exponent = exponent / (half_dim - downscale_freq_shift)
    emb = timesteps[:, None].float() * torch.exp(exponent)[None, :]
    emb = torch.cat([torch.sin(emb), torch.cos(emb)], dim=-1)
    if flip_sin_to_cos:
        emb = torch.cat([emb[:, half_dim:], emb[:, :half_dim]], dim=-1)
    return emb


class TimestepEmbedding(nn.Module):
    def __init__(self, in_channels, time_embed_dim, out_dim=None):
        super().__init__()
        self.linear_1 = nn.Linear(in_channels, time_embed_dim)
        self.act = nn.SiLU()
        self.linear_2 = nn.Linear(time_embed_dim, out_dim if out_dim is not None else time_embed_dim)

    def forward(self, sample):
        return self.linear_2(self.act(self.linear_1(sample)))


class AlphaBlender(nn.Module):
    def __init__(self, alpha, merge_strategy="learned_with_images", switch_spatial_to_temporal_mix=False):
        super().__init__()
        self.merge_strategy = merge_strategy
        self.switch_spatial_to_temporal_mix = switch_spatial_to_temporal_mix
        self.register_parameter("mix_factor", nn.Parameter(torch.Tensor([alpha])))

    def get_alpha(self, image_only_indicator, ndims):
        if self.merge_strategy == "learned":
            alpha = torch.sigmoid(self.mix_factor)
        else:
            alpha = torch.where(
                image_only_indicator.bool(), torch.ones(1, 1, device=image_only_indicator.device), torch.sigmoid(self.mix_factor)[..., None]
            )
            if ndims == 5:
                alpha = alpha[:, None, :, None, None]
            elif ndims == 3:
                alpha = alpha.reshape(-1)[:, None, None]
        return alpha

    def forward(self, x_spatial, x_temporal, image_only_indicator=None):
        alpha = self.get_alpha(image_only_indicator, x_spatial.ndim).to(x_spatial.dtype)
        if self.switch_spatial_to_temporal_mix:
            alpha = 1.0 - alpha
        return alpha * x_spatial + (1.0 - alpha) * x_temporal


class ResnetBlock2D(nn.Module):
    def __init__(self, in_channels, out_channels, temb_channels, groups=8):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, in_channels, eps=1e-5)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.time_emb_proj = nn.Linear(temb_channels, out_channels)
        self.norm2 = nn.GroupNorm(groups, out_channels, eps=1e-5)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.nonlinearity = nn.SiLU()
        self.conv_shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, input_tensor, temb):
        hidden_states = self.conv1(self.nonlinearity(self.norm1(input_tensor)))
        temb = self.time_emb_proj(self.nonlinearity(temb))[:, :, None, None]
        hidden_states = self.norm2(hidden_states + temb)
        hidden_states = self.conv2(self.nonlinearity(hidden_states))
        if self.conv_shortcut is not None:
            input_tensor = self.conv_shortcut(input_tensor)
        return input_tensor + hidden_states


class TemporalResnetBlock(nn.Module):
    def __init__(self, channels, temb_channels, groups=8):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels, eps=1e-5)
        self.conv1 = nn.Conv3d(channels, channels, (3, 1, 1), padding=(1, 0, 0))
        self.time_emb_proj = nn.Linear(temb_channels, channels)
        self.norm2 = nn.GroupNorm(groups, channels, eps=1e-5)
        self.conv2 = nn.Conv3d(channels, channels, (3, 1, 1), padding=(1, 0, 0))
        self.nonlinearity = nn.SiLU()

    def forward(self, input_tensor, temb):
        hidden_states = self.conv1(self.nonlinearity(self.norm1(input_tensor)))
        temb = self.time_emb_proj(self.nonlinearity(temb))[:, :, :, None, None]
        temb = temb.permute(0, 2, 1, 3, 4)
        hidden_states = hidden_states + temb
        hidden_states = self.conv2(self.nonlinearity(self.norm2(hidden_states)))
        return input_tensor + hidden_states


class SpatioTemporalResBlock(nn.Module):
    def __init__(self, in_channels, out_channels, temb_channels):
        super().__init__()
        self.spatial_res_block = ResnetBlock2D(in_channels, out_channels, temb_channels)
        self.temporal_res_block = TemporalResnetBlock(out_channels, temb_channels)
        self.time_mixer = AlphaBlender(0.5)

    def forward(self, hidden_states, temb, image_only_indicator):
        num_frames = image_only_indicator.shape[-1]
        hidden_states = self.spatial_res_block(hidden_states, temb)
        batch_frames, channels, height, width = hidden_states.shape
        batch_size = batch_frames // num_frames
        hidden_states_mix = hidden_states[None, :].reshape(batch_size, num_frames, channels, height, width).permute(0, 2, 1, 3, 4)
        hidden_states = hidden_states[None, :].reshape(batch_size, num_frames, channels, height, width).permute(0, 2, 1, 3, 4)
        temb = temb.reshape(batch_size, num_frames, -1)
        hidden_states = self.temporal_res_block(hidden_states, temb)
        hidden_states = self.time_mixer(hidden_states_mix, hidden_states, image_only_indicator=image_only_indicator)
        return hidden_states.permute(0, 2, 1, 3, 4).reshape(batch_frames, channels, height, width)


class Attention(nn.Module):
    def __init__(self, query_dim, heads, dim_head, cross_attention_dim=None):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        kv = cross_attention_dim if cross_attention_dim is not None else query_dim
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k, self.to_v = nn.Linear(kv, inner, bias=False), nn.Linear(kv, inner, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(inner, query_dim), nn.Dropout(0.0)])

    def forward(self, hidden_states, encoder_hidden_states=None):
        b = hidden_states.shape[0]
        ctx = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        q, k, v = self.to_q(hidden_states), self.to_k(ctx), self.to_v(ctx)
        head_dim = q.shape[-1] // self.heads
        q, k, v = (t.view(b, -1, self.heads, head_dim).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, -1, self.heads * head_dim)
        return self.to_out[1](self.to_out[0](out))


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4):
        super().__init__()
        self.proj = nn.Linear(dim, dim * mult * 2)
        self.out = nn.Linear(dim * mult, dim)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return self.out(x * F.gelu(gate))


class BasicTransformerBlock(nn.Module):
    def __init__(self, dim, heads, dim_head, cross_dim):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn1, self.attn2 = Attention(dim, heads, dim_head), Attention(dim, heads, dim_head, cross_dim)
        self.ff = FeedForward(dim)

    def forward(self, x, encoder_hidden_states):
        x = self.attn1(self.norm1(x)) + x
        x = self.attn2(self.norm2(x), encoder_hidden_states) + x
        return self.ff(self.norm3(x)) + x


class TemporalBasicTransformerBlock(nn.Module):
    def __init__(self, dim, heads, dim_head, cross_dim):
        super().__init__()
        self.norm_in = nn.LayerNorm(dim)
        self.ff_in = FeedForward(dim)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn1, self.attn2 = Attention(dim, heads, dim_head), Attention(dim, heads, dim_head, cross_dim)
        self.ff = FeedForward(dim)

    def forward(self, hidden_states, num_frames, encoder_hidden_states):
        batch_frames, seq_length, channels = hidden_states.shape
        batch_size = batch_frames // num_frames
        hidden_states = hidden_states[None, :].reshape(batch_size, num_frames, seq_length, channels).permute(0, 2, 1, 3)
        hidden_states = hidden_states.reshape(batch_size * seq_length, num_frames, channels)
        residual = hidden_states
        hidden_states = self.ff_in(self.norm_in(hidden_states)) + residual
        hidden_states = self.attn1(self.norm1(hidden_states)) + hidden_states
        hidden_states = self.attn2(self.norm2(hidden_states), encoder_hidden_states) + hidden_states
        hidden_states = self.ff(self.norm3(hidden_states)) + hidden_states
        hidden_states = hidden_states[None, :].reshape(batch_size, seq_length, num_frames, channels).permute(0, 2, 1, 3)
        return hidden_states.reshape(batch_size * num_frames, seq_length, channels)


class TransformerSpatioTemporalModel(nn.Module):
    def __init__(self, heads, dim_head, in_channels, cross_dim):
        super().__init__()
        inner = heads * dim_head
        self.in_channels = in_channels
        self.norm = nn.GroupNorm(8, in_channels, eps=1e-6)
        self.proj_in, self.proj_out = nn.Linear(in_channels, inner), nn.Linear(inner, in_channels)
        self.transformer_blocks = nn.ModuleList([BasicTransformerBlock(inner, heads, dim_head, cross_dim)])
        self.temporal_transformer_blocks = nn.ModuleList([TemporalBasicTransformerBlock(inner, heads, dim_head, cross_dim)])
        self.time_pos_embed = TimestepEmbedding(in_channels, in_channels * 4, out_dim=in_channels)
        self.time_mixer = AlphaBlender(0.5)

    def forward(self, hidden_states, encoder_hidden_states, image_only_indicator):
        batch_frames, _, height, width = hidden_states.shape
        num_frames = image_only_indicator.shape[-1]
        batch_size = batch_frames // num_frames
        time_context = encoder_hidden_states
        time_context_first_timestep = time_context[None, :].reshape(batch_size, num_frames, -1, time_context.shape[-1])[:, 0]
        time_context = time_context_first_timestep[:, None].broadcast_to(
            batch_size, height * width, time_context.shape[-2], time_context.shape[-1]
        )
        time_context = time_context.reshape(batch_size * height * width, -1, time_context.shape[-1])
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        inner_dim = hidden_states.shape[1]
        hidden_states = hidden_states.permute(0, 2, 3, 1).reshape(batch_frames, height * width, inner_dim)
        hidden_states = self.proj_in(hidden_states)
        num_frames_emb = torch.arange(num_frames, device=hidden_states.device)
        num_frames_emb = num_frames_emb.repeat(batch_size, 1).reshape(-1)
        t_emb = get_timestep_embedding(num_frames_emb, self.in_channels).to(dtype=hidden_states.dtype)
        emb = self.time_pos_embed(t_emb)[:, None, :]
        for block, temporal_block in zip(self.transformer_blocks, self.temporal_transformer_blocks):
            hidden_states = block(hidden_states, encoder_hidden_states=encoder_hidden_states)
            hidden_states_mix = hidden_states + emb
            hidden_states_mix = temporal_block(hidden_states_mix, num_frames=num_frames, encoder_hidden_states=time_context)
            hidden_states = self.time_mixer(hidden_states, hidden_states_mix, image_only_indicator=image_only_indicator)
        hidden_states = self.proj_out(hidden_states)
        hidden_states = hidden_states.reshape(batch_frames, height, width, inner_dim).permute(0, 3, 1, 2).contiguous()
        return hidden_states + residual


class Model(nn.Module):
    """Stable-Video-Diffusion-like UNet: spatio-temporal residual blocks and transformers with learned mixing of frames, EDM preconditioning outside."""

    def __init__(self, in_channels, out_channels, blocks, cross_dim, heads):
        super().__init__()
        c0, c1 = blocks
        temb = c0 * 4
        self.c0 = c0
        self.conv_in = nn.Conv2d(in_channels, c0, 3, padding=1)
        self.time_embedding = TimestepEmbedding(c0, temb)
        self.addition_time_embed_dim = 32
        self.add_embedding = TimestepEmbedding(self.addition_time_embed_dim * 3, temb)
        self.down_res = nn.ModuleList([SpatioTemporalResBlock(c0, c0, temb), SpatioTemporalResBlock(c0, c1, temb)])
        self.down_attn = nn.ModuleList([TransformerSpatioTemporalModel(heads[0], c0 // heads[0], c0, cross_dim), None])
        self.downsampler = nn.Conv2d(c0, c0, 3, stride=2, padding=1)
        self.mid_res = nn.ModuleList([SpatioTemporalResBlock(c1, c1, temb), SpatioTemporalResBlock(c1, c1, temb)])
        self.mid_attn = TransformerSpatioTemporalModel(heads[1], c1 // heads[1], c1, cross_dim)
        self.up_res = nn.ModuleList([SpatioTemporalResBlock(c1 + c1, c1, temb), SpatioTemporalResBlock(c1 + c0, c0, temb), SpatioTemporalResBlock(c0 + c0, c0, temb)])
        self.upsampler = nn.Conv2d(c1, c1, 3, padding=1)
        self.conv_norm_out = nn.GroupNorm(8, c0, eps=1e-5)
        self.conv_out = nn.Conv2d(c0, out_channels, 3, padding=1)

    def unet(self, sample, timestep, encoder_hidden_states, added_time_ids):
        batch_size, num_frames = sample.shape[:2]
        emb = self.time_embedding(get_timestep_embedding(timestep, self.c0).to(sample.dtype))
        time_embeds = get_timestep_embedding(added_time_ids.flatten(), self.addition_time_embed_dim)
        aug_emb = self.add_embedding(time_embeds.reshape((batch_size, -1)).to(emb.dtype))
        emb = emb + aug_emb
        sample = sample.flatten(0, 1)
        emb = emb.repeat_interleave(num_frames, dim=0)
        encoder_hidden_states = encoder_hidden_states.repeat_interleave(num_frames, dim=0)
        sample = self.conv_in(sample)
        image_only_indicator = torch.zeros(batch_size, num_frames, dtype=sample.dtype, device=sample.device)
        res_samples = (sample,)
        sample = self.down_res[0](sample, emb, image_only_indicator)
        sample = self.down_attn[0](sample, encoder_hidden_states, image_only_indicator)
        res_samples += (sample,)
        sample = self.downsampler(sample)
        sample = self.down_res[1](sample, emb, image_only_indicator)
        res_samples += (sample,)
        sample = self.mid_res[0](sample, emb, image_only_indicator)
        sample = self.mid_attn(sample, encoder_hidden_states, image_only_indicator)
        sample = self.mid_res[1](sample, emb, image_only_indicator)
        for i, resnet in enumerate(self.up_res):
            if i == 1:
                sample = self.upsampler(F.interpolate(sample, scale_factor=2.0, mode="nearest"))
            res_hidden_states = res_samples[-1]
            res_samples = res_samples[:-1]
            sample = torch.cat([sample, res_hidden_states], dim=1)
            sample = resnet(sample, emb, image_only_indicator)
        sample = self.conv_out(F.silu(self.conv_norm_out(sample)))
        return sample.reshape(batch_size, num_frames, *sample.shape[1:])

    def forward(self, latents, image_latents, noise, sigma, image_embeds, added_time_ids):
        s = sigma[:, None, None, None, None]
        noisy = latents + noise * s
        c_in = 1 / torch.sqrt(s**2 + 1)
        cond = image_latents.unsqueeze(1).repeat(1, latents.shape[1], 1, 1, 1)
        inp = torch.cat([noisy * c_in, cond], dim=2)
        model_pred = self.unet(inp, 0.25 * sigma.log(), image_embeds, added_time_ids)
        c_out = -s / torch.sqrt(s**2 + 1)
        c_skip = 1 / (s**2 + 1)
        denoised = model_pred * c_out + c_skip * noisy
        weighting = (1 + s**2) * s**-2.0
        loss = torch.mean((weighting.float() * (denoised.float() - latents.float()) ** 2).reshape(latents.shape[0], -1), dim=1)
        return loss.mean(), denoised


def get_inputs():
    B, T, H, W = 2, 5, 20, 12
    return [
        torch.randn(B, T, 4, H, W),
        torch.randn(B, 4, H, W),
        torch.randn(B, T, 4, H, W),
        torch.tensor([0.9, 2.7]),
        torch.randn(B, 3, 80),
        torch.tensor([[6.0, 127.0, 0.02], [7.0, 90.0, 0.02]]),
    ]


def get_init_inputs():
    return [8, 4, (48, 80), 80, (2, 4)]
