import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, HEADS = 24, 256, 1152, 16


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Model(nn.Module):
    """DiT block: shift/scale/gate of both branches from one linear of the conditioning."""

    def __init__(self, dim, heads, mlp_ratio):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim, bias=True)
        self.proj = nn.Linear(dim, dim, bias=True)
        self.fc1 = nn.Linear(dim, mlp_ratio * dim)
        self.fc2 = nn.Linear(mlp_ratio * dim, dim)
        self.ada = nn.Linear(dim, 6 * dim, bias=True)
        nn.init.normal_(self.ada.weight, std=0.3 / dim ** 0.5)
        nn.init.normal_(self.ada.bias, std=0.3)

    def forward(self, x, c):
        b, t, d = x.shape
        mod = self.ada(F.silu(c))
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = mod.chunk(6, dim=1)
        h = modulate(self.norm1(x), shift_a, scale_a)
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v)
        x = x + gate_a.unsqueeze(1) * self.proj(o.transpose(1, 2).reshape(b, t, d))
        h = modulate(self.norm2(x), shift_m, scale_m)
        x = x + gate_m.unsqueeze(1) * self.fc2(F.gelu(self.fc1(h), approximate="tanh"))
        return x


def get_inputs():
    return [torch.randn(B, T, D), torch.randn(B, D)]


def get_init_inputs():
    return [D, HEADS, 4]
