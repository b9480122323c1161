import torch
import torch.nn as nn


class Model(nn.Module):
    """Evaluates 2-D Gaussians at every pixel and composites them by depth with an exclusive cumprod."""

    def __init__(self, h, w):
        super().__init__()
        self.h, self.w = h, w
        self.bg = nn.Parameter(torch.rand(3))

    def forward(self, mean, logs, rot, op, col, depth):
        order = torch.argsort(depth)
        mean, logs, rot, op, col = (a.index_select(0, order) for a in (mean, logs, rot, op, col))
        z = depth.index_select(0, order)
        c, s = torch.cos(rot), torch.sin(rot)
        i0, i1 = torch.exp(-2 * logs[:, 0]), torch.exp(-2 * logs[:, 1])
        ca, cb, cc = c * c * i0 + s * s * i1, c * s * (i0 - i1), s * s * i0 + c * c * i1
        y = torch.arange(self.h, device=mean.device, dtype=mean.dtype) + 0.5
        x = torch.arange(self.w, device=mean.device, dtype=mean.dtype) + 0.5
        dx = x.view(1, -1, 1) - mean[:, 0] * self.w
        dy = y.view(-1, 1, 1) - mean[:, 1] * self.h
        power = -0.5 * (ca * dx * dx + cc * dy * dy) - cb * dx * dy
        a = (torch.sigmoid(op) * torch.exp(power)).clamp(max=0.99)
        a = torch.where(a < 1.0 / 255.0, torch.zeros_like(a), a)
        tr = torch.cumprod(1 - a, dim=-1)
        ex = torch.cat([torch.ones_like(tr[..., :1]), tr[..., :-1]], -1)
        wt = a * ex
        rgb = wt @ torch.sigmoid(col) + tr[..., -1:] * self.bg
        acc = wt.sum(-1)
        return rgb, (wt * z).sum(-1) / (acc + 1e-4), acc


def get_inputs():
    g = 211
    return [torch.rand(g, 2), torch.randn(g, 2) * 0.5 + 2.5, torch.randn(g), torch.randn(g),
            torch.randn(g, 3), torch.rand(g) * 10 + 0.1]


def get_init_inputs():
    return [251, 241]
