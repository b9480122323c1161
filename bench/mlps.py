"""Gated layers of usual sizes, for bench/gpu.py: a user's models outside the zoo."""
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
