import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Volume rendering: density to alpha, exclusive cumprod of transmittance, weighted colour, depth and opacity."""

    def __init__(self, samples, background):
        super().__init__()
        self.raw_shift = nn.Parameter(torch.tensor(-1.0))
        self.background = nn.Parameter(torch.tensor(background))
        self.register_buffer("ticks", torch.linspace(2.0, 6.0, samples))

    def forward(self, sigma, rgb, delta):
        alpha = 1.0 - torch.exp(-F.softplus(sigma + self.raw_shift) * delta)
        keep = 1.0 - alpha + 1e-10
        trans = torch.cumprod(keep, dim=-1)
        trans = torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], dim=-1)
        w = alpha * trans
        color = (w.unsqueeze(-1) * torch.sigmoid(rgb)).sum(dim=1)
        opacity = w.sum(dim=-1, keepdim=True)
        depth = (w * self.ticks).sum(dim=-1, keepdim=True) / (opacity + 1e-6)
        color = color + (1.0 - opacity) * self.background
        return torch.cat([color, depth, opacity], dim=-1)


batch = 50000
samples = 193


def get_inputs():
    return [
        torch.randn(batch, samples),
        torch.randn(batch, samples, 3),
        torch.rand(batch, samples) * 0.05 + 0.005,
    ]


def get_init_inputs():
    return [samples, [1.0, 0.9, 0.8]]
