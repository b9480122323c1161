"""Quotients of many numbers and one divisor are those of a division, to the bit."""

from __future__ import annotations

import pytest
import torch

import torchweld


def _bits(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any float32."""
    generator = torch.Generator("cuda").manual_seed(seed)
    least, most = -(2**31), 2**31
    drawn = torch.randint(least, most, shape, generator=generator, device="cuda")
    return drawn.to(torch.int32).view(torch.float32)


def _near_one(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return 1 + torch.rand(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


@pytest.mark.parametrize("made", [_bits, _near_one])
@pytest.mark.parametrize("seed", range(4))
def test_they_are_rounded_to_the_nearest(made, seed):
    """But for one unit in the last place where the rest of a tiny number is not exact."""
    torch.compiler.reset()
    rows, row = made((4096, 8192), seed), made((4096, 1), seed + 100)
    with torch.no_grad():
        found, wanted = torchweld.fuse(lambda x, s: (x / s).neg())(rows, row), (rows / row).neg()
    known = ~(found.isnan() & wanted.isnan())
    apart = (found.view(torch.int32).long() - wanted.view(torch.int32).long()).abs()[known]
    exact = (rows.abs() >= 2.0**-103) & (wanted.abs() >= 2.0**-126) & (wanted.abs() < 2.0**127)
    assert apart.max() <= 1 and apart[exact[known]].max() == 0
