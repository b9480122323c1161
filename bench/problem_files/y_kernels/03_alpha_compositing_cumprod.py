import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Volume rendering along rays: densities to alphas, exclusive cumprod transmittance, weighted colour and depth."""

    def __init__(self, background):
        super().__init__()
        self.background = nn.Parameter(torch.full((3,), float(background)))

    def forward(self, density, rgb, delta):
        tau = F.softplus(density - 1.0) * delta
        alpha = 1.0 - torch.exp(-tau)
        trans = torch.cumprod(1.0 - alpha + 1e-6, dim=-1)
        trans = torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], dim=-1)
        weights = alpha * trans
        colour = (weights.unsqueeze(-1) * torch.sigmoid(rgb)).sum(dim=1)
        depth = (weights * torch.cumsum(delta, dim=-1)).sum(dim=-1)
        acc = weights.sum(dim=-1, keepdim=True)
        return colour + (1.0 - acc) * self.background, depth


num_rays = 50021
num_samples = 97


def get_inputs():
    density = torch.randn(num_rays, num_samples)
    rgb = torch.randn(num_rays, num_samples, 3)
    delta = torch.rand(num_rays, num_samples) * 0.05 + 0.005
    return [density, rgb, delta]


def get_init_inputs():
    return [0.8]
