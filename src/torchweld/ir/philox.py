"""Philox4x32-10, counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011).

The stream of a seed is indexed by logical element number, so forward and backward, and every device
and tiling, draw the same number for the same element without storing it.
"""
from __future__ import annotations

import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def words(seed: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """First output word (int64 holding 32 bits) for counter (index low, index high, 0, 0) and key
    (seed low, high)."""
    c0, c1 = index & _LOW, (index >> 32) & _LOW
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(ROUNDS):
        hi0, lo0 = _multiply(MULTIPLIERS[0], c0)
        hi1, lo1 = _multiply(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + WEYL[0]) & _LOW, (k1 + WEYL[1]) & _LOW
    return c0


def uniform(seed: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """float32 in [0, 1) with 24 random bits, exactly representable."""
    return ((words(seed, index) >> 8).to(torch.float64) * 2.0**-24).to(torch.float32)


def _multiply(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """32 x 32 -> (high, low) words, in int64 arithmetic without overflow."""
    low16, high16 = b & 0xFFFF, b >> 16
    middle = a * high16 + ((a * low16) >> 16)  # below 2**49
    low = ((middle << 16) | ((a * low16) & 0xFFFF)) & _LOW
    return middle >> 16, low
