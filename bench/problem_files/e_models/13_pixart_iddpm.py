import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def t2i_modulate(x, shift, scale):
    return x * (1 + scale) + shift


def mean_flat(tensor):
    return tensor.mean(dim=list(range(1, len(tensor.shape))))


class TimestepEmbedder(nn.Module):
    def __init__(self, hidden_size, frequency_embedding_size=256):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(frequency_embedding_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size))
        self.frequency_embedding_size = frequency_embedding_size

    @staticmethod
    def timestep_embedding(t, dim, max_period=10000):
        half = dim // 2
        freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32, device=t.device) / half)
        args = t[:, None].float() * freqs[None]
        return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)

    def forward(self, t):
        t_freq = self.timestep_embedding(t, self.frequency_embedding_size)
        return self.mlp(t_freq.to(self.mlp[0].weight.dtype))


class SizeEmbedder(TimestepEmbedder):
    def forward(self, s, bs):
        if s.ndim == 1:
            s = s[:, None]
        if s.shape[0] != bs:
            s = s.repeat(bs // s.shape[0], 1)
        b, dims = s.shape[0], s.shape[1]
        s = s.reshape(b * dims)
        s_freq = self.timestep_embedding(s, self.frequency_embedding_size).to(self.mlp[0].weight.dtype)
        s_emb = self.mlp(s_freq)
        return s_emb.reshape(b, dims * s_emb.shape[-1])


class CaptionEmbedder(nn.Module):
    def __init__(self, in_channels, hidden_size, token_num):
        super().__init__()
        self.y_proj = nn.Sequential(nn.Linear(in_channels, hidden_size), nn.GELU(approximate="tanh"), nn.Linear(hidden_size, hidden_size))
        self.register_buffer("y_embedding", torch.randn(token_num, in_channels) / in_channels**0.5)

    def token_drop(self, caption, force_drop_ids):
        drop_ids = force_drop_ids == 1
        return torch.where(drop_ids[:, None, None, None], self.y_embedding, caption)

    def forward(self, caption, force_drop_ids=None):
        if force_drop_ids is not None:
            caption = self.token_drop(caption, force_drop_ids)
        return self.y_proj(caption)


class WindowlessAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.unbind(2)
        x = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)
        return self.proj(x.reshape(B, N, C))


class MultiHeadCrossAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.d_model, self.num_heads, self.head_dim = d_model, num_heads, d_model // num_heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.kv_linear = nn.Linear(d_model, d_model * 2)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x, cond, mask=None):
        B, N, C = x.shape
        q = self.q_linear(x).view(B, -1, self.num_heads, self.head_dim).transpose(1, 2)
        kv = self.kv_linear(cond).view(B, -1, 2, self.num_heads, self.head_dim)
        k, v = kv.unbind(2)
        bias = None
        if mask is not None:
            bias = (1 - mask.to(x.dtype)) * -10000.0
            bias = bias[:, None, None, :]
        x = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=bias)
        return self.proj(x.transpose(1, 2).reshape(B, -1, C))


class PixArtBlock(nn.Module):
    def __init__(self, hidden_size, num_heads, mlp_ratio=4.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.attn = WindowlessAttention(hidden_size, num_heads)
        self.cross_attn = MultiHeadCrossAttention(hidden_size, num_heads)
        self.norm2 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        inner = int(hidden_size * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, hidden_size))
        self.scale_shift_table = nn.Parameter(torch.randn(6, hidden_size) / hidden_size**0.5)

    def forward(self, x, y, t, mask=None):
        B, N, C = x.shape
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = (
            self.scale_shift_table[None] + t.reshape(B, 6, -1)
        ).chunk(6, dim=1)
        x = x + (gate_msa * self.attn(t2i_modulate(self.norm1(x), shift_msa, scale_msa)).reshape(B, N, C))
        x = x + self.cross_attn(x, y, mask)
        return x + (gate_mlp * self.mlp(t2i_modulate(self.norm2(x), shift_mlp, scale_mlp)))


class T2IFinalLayer(nn.Module):
    def __init__(self, hidden_size, patch_size, out_channels):
        super().__init__()
        self.norm_final = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(hidden_size, patch_size * patch_size * out_channels, bias=True)
        self.scale_shift_table = nn.Parameter(torch.randn(2, hidden_size) / hidden_size**0.5)

    def forward(self, x, t):
        shift, scale = (self.scale_shift_table[None] + t[:, None]).chunk(2, dim=1)
        return self.linear(t2i_modulate(self.norm_final(x), shift, scale))


def get_2d_sincos_pos_embed(embed_dim, h, w, pe_interpolation=1.0, base_size=16):
    grid_h = np.arange(h, dtype=np.float32) / (h / base_size) / pe_interpolation
    grid_w = np.arange(w, dtype=np.float32) / (w / base_size) / pe_interpolation
    grid = np.stack(np.meshgrid(grid_w, grid_h), axis=0).reshape([2, 1, h, w])

    def one_d(dim, pos):
        omega = 1.0 / 10000 ** (np.arange(dim // 2, dtype=np.float64) / (dim / 2.0))
        out = np.einsum("m,d->md", pos.reshape(-1), omega)
        return np.concatenate([np.sin(out), np.cos(out)], axis=1)

    return np.concatenate([one_d(embed_dim // 2, grid[0]), one_d(embed_dim // 2, grid[1])], axis=1)


def normal_kl(mean1, logvar1, mean2, logvar2):
    return 0.5 * (-1.0 + logvar2 - logvar1 + torch.exp(logvar1 - logvar2) + ((mean1 - mean2) ** 2) * torch.exp(-logvar2))


def approx_standard_normal_cdf(x):
    return 0.5 * (1.0 + torch.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * torch.pow(x, 3))))


def discretized_gaussian_log_likelihood(x, *, means, log_scales):
    centered_x = x - means
    inv_stdv = torch.exp(-log_scales)
    cdf_plus = approx_standard_normal_cdf(inv_stdv * (centered_x + 1.0 / 255.0))
    cdf_min = approx_standard_normal_cdf(inv_stdv * (centered_x - 1.0 / 255.0))
    log_cdf_plus = torch.log(cdf_plus.clamp(min=1e-12))
    log_one_minus_cdf_min = torch.log((1.0 - cdf_min).clamp(min=1e-12))
    cdf_delta = cdf_plus - cdf_min
    return torch.where(
        x < -0.999, log_cdf_plus, torch.where(x > 0.999, log_one_minus_cdf_min, torch.log(cdf_delta.clamp(min=1e-12)))
    )


def _extract_into_tensor(arr, timesteps, broadcast_shape):
    res = arr[timesteps].float()
    while len(res.shape) < len(broadcast_shape):
        res = res[..., None]
    return res + torch.zeros(broadcast_shape, device=timesteps.device)


class Model(nn.Module):
    """PixArt-alpha diffusion transformer (shared adaLN-single, masked text cross-attention, size conditions) with the learned-variance DDPM loss."""

    def __init__(self, input_size, patch_size, in_channels, hidden, depth, heads, caption_channels, token_num):
        super().__init__()
        self.patch_size, self.in_channels, self.out_channels = patch_size, in_channels, in_channels * 2
        h, w = input_size[0] // patch_size, input_size[1] // patch_size
        self.x_embedder = nn.Conv2d(in_channels, hidden, kernel_size=patch_size, stride=patch_size)
        self.t_embedder = TimestepEmbedder(hidden, 128)
        self.csize_embedder = SizeEmbedder(hidden // 3, 64)
        self.ar_embedder = SizeEmbedder(hidden // 3, 64)
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 6 * hidden))
        self.y_embedder = CaptionEmbedder(caption_channels, hidden, token_num)
        pos = get_2d_sincos_pos_embed(hidden, h, w)
        self.register_buffer("pos_embed", torch.from_numpy(pos).float().unsqueeze(0))
        self.blocks = nn.ModuleList([PixArtBlock(hidden, heads) for _ in range(depth)])
        self.final_layer = T2IFinalLayer(hidden, patch_size, self.out_channels)
        # schedule
        betas = np.linspace(0.0001, 0.02, 1000, dtype=np.float64)
        alphas = 1.0 - betas
        ac = np.cumprod(alphas, axis=0)
        ac_prev = np.append(1.0, ac[:-1])
        post_var = betas * (1.0 - ac_prev) / (1.0 - ac)
        for name, arr in dict(
            log_betas=np.log(betas),
            sqrt_ac=np.sqrt(ac),
            sqrt_one_minus_ac=np.sqrt(1.0 - ac),
            sqrt_recip_ac=np.sqrt(1.0 / ac),
            sqrt_recipm1_ac=np.sqrt(1.0 / ac - 1),
            post_logvar=np.log(np.append(post_var[1], post_var[1:])),
            post_c1=betas * np.sqrt(ac_prev) / (1.0 - ac),
            post_c2=(1.0 - ac_prev) * np.sqrt(alphas) / (1.0 - ac),
        ).items():
            self.register_buffer(name, torch.from_numpy(arr), persistent=False)
        self.apply(lambda m: nn.init.xavier_uniform_(m.weight) if isinstance(m, nn.Linear) else None)
        nn.init.normal_(self.t_block[1].weight, std=0.02)
        nn.init.normal_(self.final_layer.linear.weight, std=0.02)

    def unpatchify(self, x, h, w):
        c, p = self.out_channels, self.patch_size
        x = x.reshape(shape=(x.shape[0], h, w, p, p, c))
        x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(shape=(x.shape[0], c, h * p, w * p))

    def denoise(self, x, timestep, y, mask, img_hw, aspect_ratio, force_drop_ids):
        bs = x.shape[0]
        h, w = x.shape[-2] // self.patch_size, x.shape[-1] // self.patch_size
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        t = self.t_embedder(timestep)
        csize = self.csize_embedder(img_hw, bs)
        ar = self.ar_embedder(aspect_ratio, bs)
        t = t + torch.cat([csize, ar], dim=1)
        t0 = self.t_block(t)
        y = self.y_embedder(y, force_drop_ids).squeeze(1)
        for block in self.blocks:
            x = block(x, y, t0, mask)
        return self.unpatchify(self.final_layer(x, t), h, w)

    def q_posterior_mean(self, x_start, x_t, t):
        return _extract_into_tensor(self.post_c1, t, x_t.shape) * x_start + _extract_into_tensor(self.post_c2, t, x_t.shape) * x_t

    def _vb_terms_bpd(self, frozen_out, x_start, x_t, t):
        true_mean = self.q_posterior_mean(x_start, x_t, t)
        true_log_variance = _extract_into_tensor(self.post_logvar, t, x_t.shape)
        eps, model_var_values = torch.split(frozen_out, x_t.shape[1], dim=1)
        min_log, max_log = true_log_variance, _extract_into_tensor(self.log_betas, t, x_t.shape)
        frac = (model_var_values + 1) / 2
        model_log_variance = frac * max_log + (1 - frac) * min_log
        pred_xstart = _extract_into_tensor(self.sqrt_recip_ac, t, x_t.shape) * x_t - _extract_into_tensor(self.sqrt_recipm1_ac, t, x_t.shape) * eps
        model_mean = self.q_posterior_mean(pred_xstart, x_t, t)
        kl = mean_flat(normal_kl(true_mean, true_log_variance, model_mean, model_log_variance)) / np.log(2.0)
        decoder_nll = -discretized_gaussian_log_likelihood(x_start, means=model_mean, log_scales=0.5 * model_log_variance)
        decoder_nll = mean_flat(decoder_nll) / np.log(2.0)
        return torch.where((t == 0), decoder_nll, kl)

    def forward(self, x_start, t, noise, y, mask, img_hw, aspect_ratio, force_drop_ids):
        x_t = (
            _extract_into_tensor(self.sqrt_ac, t, x_start.shape) * x_start
            + _extract_into_tensor(self.sqrt_one_minus_ac, t, x_start.shape) * noise
        )
        model_output = self.denoise(x_t, t, y, mask, img_hw=img_hw, aspect_ratio=aspect_ratio, force_drop_ids=force_drop_ids)
        C = x_t.shape[1]
        model_output, model_var_values = torch.split(model_output, C, dim=1)
        # learn the variance with the bound, without letting it affect the mean
        frozen_out = torch.cat([model_output.detach(), model_var_values], dim=1)
        terms = {}
        terms["vb"] = self._vb_terms_bpd(frozen_out, x_start, x_t, t)
        terms["mse"] = mean_flat((noise - model_output) ** 2)
        terms["loss"] = terms["mse"] + terms["vb"]
        return terms


def get_inputs():
    B, L = 3, 20
    x = torch.randn(B, 4, 24, 18) * 0.8
    t = torch.tensor([0, 613, 87])
    y = torch.randn(B, 1, L, 160)
    mask = (torch.arange(L)[None] < torch.tensor([20, 9, 14])[:, None]).long()
    img_hw = torch.tensor([[192.0, 144.0], [256.0, 200.0], [180.0, 96.0]])
    ar = torch.tensor([[1.333], [1.28], [1.875]])
    return [x, t, torch.randn(B, 4, 24, 18), y, mask, img_hw, ar, torch.tensor([0, 0, 1])]


def get_init_inputs():
    return [(24, 18), 2, 4, 192, 4, 6, 160, 20]
