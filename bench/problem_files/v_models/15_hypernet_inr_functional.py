import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class CoordMLP(nn.Module):
    """The target network: its parameters are only templates, given anew at each call."""

    def __init__(self, din, hidden, depth, dout):
        super().__init__()
        dims = [din] + [hidden] * depth
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:])])
        self.last = nn.Linear(hidden, dout)
        self.act = nn.Softplus(beta=5)

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            y = self.act(layer(x))
            x = y + x if i else y
        return self.last(x)


class Model(nn.Module):
    """A hypernetwork writes low-rank changes to an implicit image network: a convolutional set encoder gives
    one code a sample, per-parameter heads in a ParameterDict, functional_call, latent smoothness."""

    def __init__(self, n_freq, hidden, depth, latent, rank):
        super().__init__()
        self.register_buffer("B", torch.randn(2, n_freq) * 3.0)
        self.target = CoordMLP(2 * n_freq, hidden, depth, 3)
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 20, 3, 2, 1), nn.SELU(), nn.Conv2d(20, 30, 3, 2, 1), nn.SELU(),
            nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(180, 2 * latent),
        )
        self.rank = rank
        self.heads = nn.ParameterDict()
        self.shapes = {}
        for name, p in self.target.named_parameters():
            key = name.replace(".", "__")
            if p.dim() == 2:
                size = rank * (p.shape[0] + p.shape[1])
            else:
                size = p.numel()
            self.shapes[key] = tuple(p.shape)
            self.heads[key] = nn.Parameter(torch.randn(latent, size) / math.sqrt(latent))

    def write(self, z):
        """One dict of parameters for one code."""
        new = {}
        for name, p in self.target.named_parameters():
            key = name.replace(".", "__")
            raw = z @ self.heads[key]
            if p.dim() == 2:
                o, i = self.shapes[key]
                left, right = raw.split([self.rank * o, self.rank * i])
                new[name] = p * (1 + torch.tanh(left.view(o, self.rank) @ right.view(self.rank, i) / math.sqrt(self.rank)))
            else:
                new[name] = p + 0.1 * raw
        return new

    def forward(self, image, eps, coords):
        mu, logvar = self.encoder(image).chunk(2, -1)
        z = mu + eps * torch.exp(0.5 * logvar.clamp(-6, 3))
        feats = 2 * math.pi * coords @ self.B
        feats = torch.cat([feats.sin(), feats.cos()], -1)
        rgb = torch.stack([functional_call(self.target, self.write(zi), (fi,)) for zi, fi in zip(z, feats)])
        want = F.grid_sample(image, coords.unsqueeze(1), align_corners=True, padding_mode="border").squeeze(2).transpose(1, 2)
        kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(-1).mean()
        return rgb, F.huber_loss(rgb, want, delta=0.3) + 1e-3 * kl


def get_inputs():
    return [torch.rand(3, 3, 27, 35), torch.randn(3, 18), torch.rand(3, 170, 2) * 2 - 1]


def get_init_inputs():
    return [19, 44, 3, 18, 2]
