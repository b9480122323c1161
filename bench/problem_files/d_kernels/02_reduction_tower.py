import torch
import torch.nn as nn


class Model(nn.Module):
    """A tower of reductions of reductions (logsumexp, std, amax, norm, mean) broadcast back at every level."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, channels).view(1, channels, 1, 1))
        self.level = nn.Parameter(torch.tensor([0.3, -0.2, 0.7]))

    def forward(self, x):
        h = x * self.scale
        l0 = torch.logsumexp(h, dim=3)  # (N, C, H)
        l1 = l0.std(dim=1)  # (N, H)
        l2 = torch.linalg.vector_norm(l1, dim=0)  # (H,)
        l3 = l2.amax() - l2.mean()  # 0-d
        mid = l0 - self.level[0] * l1.unsqueeze(1) + self.level[1] * l2
        out = (h - mid.unsqueeze(-1)) / (1.0 + l3 * self.level[2].abs())
        return out.abs().sum(dim=2).amax(dim=-1, keepdim=True) * out.mean(dim=(2, 3)).unsqueeze(-1) + out.amin(2)


def get_inputs():
    return [torch.randn(29, 62, 31, 17)]


def get_init_inputs():
    return [62]
