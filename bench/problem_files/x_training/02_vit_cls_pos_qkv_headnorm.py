import torch
import torch.nn as nn
import torch.nn.functional as F

B, N, D, HEADS, P = 16, 576, 768, 12, 588


class Model(nn.Module):
    """Patch embedding + class token + position table, then attention with a fused
    biased qkv and per-head LayerNorm (scale and bias) of q and k,
    with a learned null key and value."""

    def __init__(self, patch_dim, dim, heads, num_patches):
        super().__init__()
        self.heads = heads
        self.hd = dim // heads
        self.patch = nn.Linear(patch_dim, dim)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.5)
        self.pos_embed = nn.Parameter(torch.randn(1, num_patches + 1, dim) * 0.2)
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        nn.init.normal_(self.qkv.bias, std=0.3)
        self.q_scale = nn.Parameter(1 + 0.1 * torch.randn(heads, 1, self.hd))
        self.q_bias = nn.Parameter(0.1 * torch.randn(heads, 1, self.hd))
        self.k_scale = nn.Parameter(1 + 0.1 * torch.randn(heads, 1, self.hd))
        self.k_bias = nn.Parameter(0.1 * torch.randn(heads, 1, self.hd))
        self.null_kv = nn.Parameter(torch.randn(2, heads, 1, self.hd))
        self.proj = nn.Linear(dim, dim)

    def _headnorm(self, t, scale, bias):
        t = F.layer_norm(t, (self.hd,), eps=1e-5)
        return t * scale + bias

    def forward(self, patches):
        b = patches.shape[0]
        x = self.patch(patches)
        x = torch.cat([self.cls_token.expand(b, -1, -1), x], dim=1) + self.pos_embed
        n = x.shape[1]
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q = self._headnorm(q, self.q_scale, self.q_bias) * self.hd ** -0.5
        k = self._headnorm(k, self.k_scale, self.k_bias)
        null_k, null_v = self.null_kv.unsqueeze(1).expand(-1, b, -1, -1, -1).unbind(0)
        k, v = torch.cat([null_k, k], dim=2), torch.cat([null_v, v], dim=2)
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        y = (attn @ v).transpose(1, 2).reshape(b, n, -1)
        x = x + self.proj(y)
        return x, x[:, 0]


def get_inputs():
    return [torch.randn(B, N, P)]


def get_init_inputs():
    return [P, D, HEADS, N]
