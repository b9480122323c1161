import torch
import torch.nn as nn
import torch.nn.functional as F


def modulate(x, shift, scale):
    if shift is None:
        shift = torch.zeros_like(scale)
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def timestep_embedding(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-9.210340371976184 * torch.arange(start=0, end=half, dtype=torch.float32) / half).to(device=t.device)
    args = t[:, None].float() * freqs[None]
    embedding = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
    if dim % 2:
        embedding = torch.cat([embedding, torch.zeros_like(embedding[:, :1])], dim=-1)
    return embedding


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x) * self.weight.to(device=x.device, dtype=x.dtype)


class SelfAttention(nn.Module):
    def __init__(self, dim, num_heads, pre_only=False):
        super().__init__()
        self.num_heads, self.head_dim, self.pre_only = num_heads, dim // num_heads, pre_only
        self.qkv = nn.Linear(dim, dim * 3)
        if not pre_only:
            self.proj = nn.Linear(dim, dim)
        self.ln_q, self.ln_k = RMSNorm(self.head_dim), RMSNorm(self.head_dim)

    def pre_attention(self, x):
        B, L, C = x.shape
        q, k, v = self.qkv(x).reshape(B, L, 3, self.num_heads, self.head_dim).movedim(2, 0)
        q = self.ln_q(q).reshape(B, L, -1)
        k = self.ln_k(k).reshape(B, L, -1)
        return q, k, v.reshape(B, L, -1)

    def post_attention(self, x):
        assert not self.pre_only
        return self.proj(x)


def attention(q, k, v, heads, mask=None):
    b, _, dim_head = q.shape
    dim_head //= heads
    q, k, v = map(lambda t: t.view(b, -1, heads, dim_head).transpose(1, 2), (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0, is_causal=False)
    return out.transpose(1, 2).reshape(b, -1, heads * dim_head)


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(dim, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class DismantledBlock(nn.Module):
    def __init__(self, dim, heads, pre_only=False, x_block_self_attn=False):
        super().__init__()
        self.pre_only, self.x_block_self_attn = pre_only, x_block_self_attn
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = SelfAttention(dim, heads, pre_only)
        if x_block_self_attn:
            self.attn2 = SelfAttention(dim, heads)
        if not pre_only:
            self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
            self.mlp = Mlp(dim, 4 * dim)
        n_mods = 2 if pre_only else (9 if x_block_self_attn else 6)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, n_mods * dim))

    def pre_attention(self, x, c):
        if self.pre_only:
            shift_msa, scale_msa = self.adaLN_modulation(c).chunk(2, dim=1)
            return self.attn.pre_attention(modulate(self.norm1(x), shift_msa, scale_msa)), None, None
        if self.x_block_self_attn:
            mods = self.adaLN_modulation(c).chunk(9, dim=1)
            shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp, shift_msa2, scale_msa2, gate_msa2 = mods
            x_norm = self.norm1(x)
            qkv = self.attn.pre_attention(modulate(x_norm, shift_msa, scale_msa))
            qkv2 = self.attn2.pre_attention(modulate(x_norm, shift_msa2, scale_msa2))
            return qkv, qkv2, (x, gate_msa, shift_mlp, scale_mlp, gate_mlp, gate_msa2)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        qkv = self.attn.pre_attention(modulate(self.norm1(x), shift_msa, scale_msa))
        return qkv, None, (x, gate_msa, shift_mlp, scale_mlp, gate_mlp)

    def post_attention(self, attn, attn2, x, gate_msa, shift_mlp, scale_mlp, gate_mlp, gate_msa2=None):
        if attn2 is not None:
            x = x + gate_msa.unsqueeze(1) * self.attn.post_attention(attn)
            x = x + gate_msa2.unsqueeze(1) * self.attn2.post_attention(attn2)
        else:
            x = x + gate_msa.unsqueeze(1) * self.attn.post_attention(attn)
        return x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))


class JointBlock(nn.Module):
    def __init__(self, dim, heads, pre_only, x_block_self_attn):
        super().__init__()
        self.context_block = DismantledBlock(dim, heads, pre_only=pre_only)
        self.x_block = DismantledBlock(dim, heads, x_block_self_attn=x_block_self_attn)

    def forward(self, context, x, c):
        context_qkv, _, context_intermediates = self.context_block.pre_attention(context, c)
        x_qkv, x_qkv2, x_intermediates = self.x_block.pre_attention(x, c)
        q, k, v = tuple(torch.cat(tuple(qkv[i] for qkv in [context_qkv, x_qkv]), dim=1) for i in range(3))
        attn = attention(q, k, v, self.x_block.attn.num_heads)
        context_attn, x_attn = attn[:, : context_qkv[0].shape[1]], attn[:, context_qkv[0].shape[1] :]
        if not self.context_block.pre_only:
            context = self.context_block.post_attention(context_attn, None, *context_intermediates)
        else:
            context = None
        x_attn2 = attention(*x_qkv2, self.x_block.attn2.num_heads) if x_qkv2 is not None else None
        return context, self.x_block.post_attention(x_attn, x_attn2, *x_intermediates)


class Model(nn.Module):
    """Stable Diffusion 3.5 medium's MMDiT-X in bfloat16: joint attention, dual attention blocks, cropped positions, guided rectified flow."""

    def __init__(self, patch, channels, dim, depth, heads, pos_max, ctx_dim, pooled_dim, x_self_layers):
        super().__init__()
        self.patch, self.channels, self.pos_max = patch, channels, pos_max
        self.x_embedder = nn.Conv2d(channels, dim, patch, patch)
        self.t_embedder = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.y_embedder = nn.Sequential(nn.Linear(pooled_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.context_embedder = nn.Linear(ctx_dim, dim)
        self.register_buffer("pos_embed", torch.randn(1, pos_max**2, dim) * 0.3)
        self.joint_blocks = nn.ModuleList(
            [JointBlock(dim, heads, i == depth - 1, i in x_self_layers) for i in range(depth)]
        )
        self.norm_final = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.final_mod = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.final_linear = nn.Linear(dim, patch * patch * channels)
        self.to(torch.bfloat16)

    def cropped_pos_embed(self, hw):
        h, w = hw[0] // self.patch, hw[1] // self.patch
        top, left = (self.pos_max - h) // 2, (self.pos_max - w) // 2
        spatial = self.pos_embed.view(1, self.pos_max, self.pos_max, self.pos_embed.shape[-1])
        spatial = spatial[:, top : top + h, left : left + w, :]
        return spatial.reshape(1, -1, spatial.shape[-1])

    def unpatchify(self, x, hw):
        p, c = self.patch, self.channels
        h, w = hw[0] // p, hw[1] // p
        x = torch.einsum("nhwpqc->nchpwq", x.reshape(x.shape[0], h, w, p, p, c))
        return x.reshape(x.shape[0], c, h * p, w * p)

    def forward(self, x, sigma, context, pooled):
        noisy, hw, dtype = x, x.shape[-2:], self.final_linear.weight.dtype
        xx = torch.cat([x, x], dim=0).to(dtype)
        timestep = torch.cat([sigma, sigma], dim=0) * 1000.0
        h = self.x_embedder(xx).flatten(2).transpose(1, 2) + self.cropped_pos_embed(hw).to(dtype=dtype)
        c = self.t_embedder(timestep_embedding(timestep, 256).to(dtype)) + self.y_embedder(pooled.to(dtype))
        context = self.context_embedder(context.to(dtype))
        for block in self.joint_blocks:
            context, h = block(context, h, c=c)
        shift, scale = self.final_mod(c).chunk(2, dim=1)
        h = self.final_linear(modulate(self.norm_final(h), shift, scale))
        out = self.unpatchify(h, hw).float()
        denoised = torch.cat([noisy, noisy], dim=0) - out * torch.cat([sigma, sigma]).view(-1, 1, 1, 1)
        pos_out, neg_out = denoised.chunk(2)
        scaled = neg_out + (pos_out - neg_out) * 4.5
        d = (noisy - scaled) / sigma.view(-1, 1, 1, 1)
        return noisy + d * -0.1, scaled


def get_inputs():
    B = 1
    return [torch.randn(B, 16, 18, 22), torch.full((B,), 0.73), torch.randn(2 * B, 29, 128), torch.randn(2 * B, 96)]


def get_init_inputs():
    return [2, 16, 192, 4, 3, 16, 128, 96, [0, 1]]
