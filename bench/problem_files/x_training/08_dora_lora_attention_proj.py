import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, R, HEADS = 4, 1024, 2048, 24, 16


class DoRA(nn.Module):
    """Frozen base weight, trainable low rank update, trainable magnitude per output."""

    def __init__(self, din, dout, rank, alpha):
        super().__init__()
        w = torch.randn(dout, din) / din ** 0.5
        self.register_buffer("weight", w)
        self.bias = nn.Parameter(torch.randn(dout) * 0.1)
        self.A = nn.Parameter(torch.randn(rank, din) / din ** 0.5)
        self.B = nn.Parameter(torch.randn(dout, rank) * 0.1)
        self.m = nn.Parameter(w.norm(dim=1) * (1 + 0.1 * torch.randn(dout)))
        self.scaling = alpha / rank

    def forward(self, x):
        w = self.weight + self.scaling * (self.B @ self.A)
        norm = w.norm(p=2, dim=1, keepdim=True)
        return F.linear(x, self.m.unsqueeze(1) * w / norm, self.bias)


class LoRA(nn.Module):
    def __init__(self, din, dout, rank, alpha):
        super().__init__()
        self.register_buffer("weight", torch.randn(dout, din) / din ** 0.5)
        self.A = nn.Parameter(torch.randn(rank, din) / din ** 0.5)
        self.B = nn.Parameter(torch.randn(dout, rank) * 0.1)
        self.scaling = alpha / rank

    def forward(self, x):
        return x @ self.weight.t() + self.scaling * ((x @ self.A.t()) @ self.B.t())


class Model(nn.Module):
    def __init__(self, dim, heads, rank, alpha):
        super().__init__()
        self.heads = heads
        self.q = DoRA(dim, dim, rank, alpha)
        self.k = LoRA(dim, dim, rank, alpha)
        self.v = DoRA(dim, dim, rank, alpha)
        self.o = LoRA(dim, dim, rank, alpha)

    def forward(self, x):
        b, t, d = x.shape
        split = lambda z: z.view(b, t, self.heads, d // self.heads).transpose(1, 2)
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(y.transpose(1, 2).contiguous().view(b, t, d))


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, HEADS, R, 16.0]
