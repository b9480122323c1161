import torch
import torch.nn as nn


class Model(nn.Module):
    """Colour matrix, 8x8 block DCT as matrix products, straight-through rounding, inverse, rate estimate."""

    def __init__(self, block):
        super().__init__()
        self.n = block
        i = torch.arange(block, dtype=torch.float32)
        d = torch.cos(torch.pi * (i + 0.5) * i.unsqueeze(1) / block) * (2.0 / block) ** 0.5
        d[0] /= 2.0 ** 0.5
        self.register_buffer("d", d)
        m = torch.tensor([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
        self.register_buffer("m", m)
        self.register_buffer("minv", torch.linalg.inv(m))
        q = 0.04 + 0.02 * (i.unsqueeze(0) + i.unsqueeze(1))
        self.logq = nn.Parameter(torch.log(torch.stack([q, 1.6 * q, 1.6 * q])))

    def forward(self, img, quality):
        b, c, h, w = img.shape
        n = self.n
        y = torch.einsum("oc,bchw->bohw", self.m, img) - 0.5
        y = y.view(b, c, h // n, n, w // n, n).permute(0, 1, 2, 4, 3, 5)
        f = self.d @ y @ self.d.t()
        q = self.logq.exp().view(1, c, 1, 1, n, n) * quality.exp().view(b, 1, 1, 1, 1, 1)
        s = f / q
        r = s + (torch.round(s) - s).detach()
        bits = torch.log2(1 + r.abs()).sum(dim=(1, 4, 5)).mean(dim=(1, 2))
        g = self.d.t() @ (r * q) @ self.d
        g = g.permute(0, 1, 2, 4, 3, 5).reshape(b, c, h, w) + 0.5
        return torch.einsum("oc,bchw->bohw", self.minv, g).clamp(0, 1), bits


def get_inputs():
    return [torch.rand(12, 3, 520, 776), torch.randn(12) * 0.5]


def get_init_inputs():
    return [8]
