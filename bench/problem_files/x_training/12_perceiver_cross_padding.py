import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, DC, D, L, HEADS = 16, 1029, 1280, 1024, 64, 16


class Model(nn.Module):
    """Perceiver resampler: learned latents expanded over the batch attend to the padded
    context and to themselves (keys and values concatenated), then a GEGLU layer."""

    def __init__(self, ctx_dim, dim, latents, heads, hidden):
        super().__init__()
        self.heads = heads
        self.latents = nn.Parameter(torch.randn(latents, dim) * 0.7)
        self.ctx_in = nn.Linear(ctx_dim, dim)
        self.norm_l = nn.LayerNorm(dim)
        self.norm_c = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=True)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=True)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.norm_f = nn.LayerNorm(dim)
        self.ff_in = nn.Linear(dim, 2 * hidden)
        self.ff_out = nn.Linear(hidden, dim)
        nn.init.normal_(self.to_kv.bias, std=0.2)

    def forward(self, ctx, lengths):
        b, t, _ = ctx.shape
        lat = self.latents.unsqueeze(0).expand(b, -1, -1)
        n = lat.shape[1]
        c = self.norm_c(self.ctx_in(ctx))
        q = self.to_q(self.norm_l(lat))
        v, k = self.to_kv(torch.cat([c, self.norm_l(lat)], dim=1)).chunk(2, dim=-1)
        heads = lambda z: z.reshape(b, z.shape[1], self.heads, -1).permute(0, 2, 1, 3)
        q, k, v = map(heads, (q, k, v))
        pad = torch.arange(t, device=ctx.device)[None] < lengths[:, None]
        pad = torch.cat([pad, pad.new_ones(b, n)], dim=1)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=pad[:, None, None, :])
        lat = lat + self.to_out(o.permute(0, 2, 1, 3).reshape(b, n, -1))
        value, gate = self.ff_in(self.norm_f(lat)).chunk(2, dim=-1)
        return lat + self.ff_out(value * F.gelu(gate))


def get_inputs():
    return [torch.randn(B, T, DC), torch.randint(T // 3, T + 1, (B,))]


def get_init_inputs():
    return [DC, D, L, HEADS, 2 * D + 36]
