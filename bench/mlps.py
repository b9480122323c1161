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


def _small(*widths: int, rows: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for depth, columns in pairwise(widths):
        layers += [torch.nn.Linear(depth, columns), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]), torch.randn(rows, widths[0])


def small():
    """Four layers of 64 columns, 2^18 rows."""
    return _small(64, 64, 64, 64, 64, rows=1 << 18)


def nerf():
    """63 encoded coordinates, three layers of 128 columns, colour and density; 2^18 samples."""
    return _small(63, 128, 128, 4, rows=1 << 18)


def policy():
    """48 observations of 4096 environments, two layers of 64 columns, 12 actions."""
    return _small(48, 64, 64, 12, rows=4096)
