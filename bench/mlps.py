"""Gated layers of usual sizes, and MLPs whose layers fit on a chip, for bench/gpu.py: a user's
models outside the zoo."""
from itertools import pairwise

import torch
import torch.nn.functional as F

from torchweld.zoo.models import GegluMlp


class SwiGluMlp(GegluMlp):
    """down(silu(gate(x)) * up(x)) over the last dimension."""

    def product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up


def swiglu():
    """8192 tokens, 768 -> 3072."""
    torch.manual_seed(0)
    return SwiGluMlp(768, 3072), torch.randn(64, 128, 768)


def llama_8b():
    """4096 tokens, 4096 -> 14336."""
    torch.manual_seed(0)
    return SwiGluMlp(4096, 14336), torch.randn(1, 4096, 4096)


def _small(*widths: int, rows: int, act=torch.nn.ReLU) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for depth, columns in pairwise(widths):
        layers += [torch.nn.Linear(depth, columns), act()]
    return torch.nn.Sequential(*layers[:-1]), torch.randn(rows, widths[0])


def small():
    """Four layers of 64 columns, 2^18 rows."""
    return _small(64, 64, 64, 64, 64, rows=1 << 18)


def nerf():
    """63 encoded coordinates, four layers of 128 columns, colour and density; 2^17 samples."""
    return _small(63, 128, 128, 128, 128, 4, rows=1 << 17)


def gelu():
    """32-64-64-16 with GELU, 2^16 rows."""
    return _small(32, 64, 64, 16, rows=1 << 16, act=torch.nn.GELU)


def policy():
    """17 observations of 4096 environments, two layers of 64 columns with tanh, 6 actions."""
    return _small(17, 64, 64, 6, rows=4096, act=torch.nn.Tanh)
