import torch
import torch.nn as nn


class Model(nn.Module):
    """Half-precision residual stream, RMS norm in full precision, then a gated unit whose gate and value are interleaved columns, both clamped, with the value shifted by one."""

    def __init__(self, width, hidden, alpha, limit):
        super().__init__()
        self.alpha, self.limit = alpha, limit
        self.scale = nn.Parameter(1.0 + 0.1 * torch.randn(width))
        self.up = nn.Parameter(3.0 * torch.randn(width, 2 * hidden) / width ** 0.5)
        self.up_bias = nn.Parameter(0.5 * torch.randn(2 * hidden))
        self.down = nn.Parameter(torch.randn(hidden, width) / hidden ** 0.5)
        self.down_bias = nn.Parameter(0.1 * torch.randn(width))

    def forward(self, x, residual):
        r = x.float() + residual.float()
        n = r * torch.rsqrt(r.square().mean(dim=-1, keepdim=True) + 1e-6) * self.scale
        h = torch.matmul(n, self.up) + self.up_bias
        gate = h[..., ::2].clamp(max=self.limit)
        value = h[..., 1::2].clamp(-self.limit, self.limit)
        y = (value + 1.0) * gate * torch.sigmoid(self.alpha * gate)
        y = torch.matmul(y, self.down) + self.down_bias
        return r + y, y.abs().amax(dim=(0, 1))


def get_inputs():
    return [torch.randn(3, 347, 360).half(), torch.randn(3, 347, 360).half()]


def get_init_inputs():
    return [360, 720, 1.702, 7.0]
