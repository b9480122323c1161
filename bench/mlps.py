"""Gated layers of usual sizes, for bench/gpu.py: a user's models outside the zoo."""
import torch
import torch.nn.functional as F
from torch import nn


class SwiGluMlp(nn.Module):
    """down(silu(gate(x)) * up(x)) over the last dimension."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def swiglu():
    """8192 tokens, 768 -> 3072."""
    torch.manual_seed(0)
    return SwiGluMlp(768, 3072), torch.randn(64, 128, 768)


def llama_8b():
    """4096 tokens, 4096 -> 14336."""
    torch.manual_seed(0)
    return SwiGluMlp(4096, 14336), torch.randn(1, 4096, 4096)
