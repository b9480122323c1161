import torch
import torch.nn as nn


class Model(nn.Module):
    """Multiplicative updates of an image from its projections: a wide matrix times a vector, a ratio, its transpose times a vector, each step."""

    def __init__(self, pixels, steps):
        super().__init__()
        self.steps = steps
        self.log_start = nn.Parameter(0.2 * torch.randn(pixels))

    def forward(self, system, counts, background):
        sensitivity = system.sum(dim=0).clamp_min(1e-3)
        x = self.log_start.exp()
        gaps = []
        for _ in range(self.steps):
            expected = system @ x + background
            ratio = counts / expected
            gaps.append((expected - counts * expected.log()).mean())
            x = x * (system.mT @ ratio) / sensitivity
        return x, torch.stack(gaps)


def get_inputs():
    system = torch.rand(509, 24593).pow(8)
    return [system, (system @ torch.rand(24593)) + 1.0, torch.full((509,), 0.5)]


def get_init_inputs():
    return [24593, 3]
