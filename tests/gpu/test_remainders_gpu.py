"""Remainders and the quotients made of them are those of torch, to the bit: also of denormals, of
divisors near them, and where a quotient has more digits than a float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchweld

COUNT = 1 << 22
Pair = tuple[torch.Tensor, torch.Tensor]


def _drawn(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def _normal(seed: int) -> torch.Tensor:
    return torch.randn(COUNT, generator=_drawn(seed), device="cuda")


def _whole(seed: int, most: int, least: int = 0) -> torch.Tensor:
    return torch.randint(least, most, (COUNT,), generator=_drawn(seed), device="cuda")


def _bits(seed: int) -> Pair:
    a, b = (_whole(seed + n, 2**31, -(2**31)).to(torch.int32).view(torch.float32) for n in (0, 1))
    return a, b


def _near(seed: int) -> Pair:
    return 100 * _normal(seed), _normal(seed + 1)


def _integers(seed: int) -> Pair:
    return _whole(seed, 2000, -2000).float(), _whole(seed + 1, 50, -50).float()


def _multiples(seed: int) -> Pair:
    divisor = _normal(seed).abs() + 0.1
    return divisor * _whole(seed + 1, 1 << 23), divisor


def _tiny(seed: int) -> Pair:
    return 1e-38 * _normal(seed), 1e-39 * _normal(seed + 1)


def _tiny_divisor(seed: int) -> Pair:
    return _normal(seed), 1e-42 * _normal(seed + 1)


@pytest.mark.parametrize("made", [_bits, _near, _integers, _multiples, _tiny, _tiny_divisor])
def test_they_are_exact(made: Callable[[int], Pair]):
    def all_three(a, b):
        return torch.fmod(a, b), torch.remainder(a, b), torch.floor_divide(a, b)

    pair = made(0)
    with torch.no_grad():
        found, wanted = torchweld.fuse(all_three)(*pair), all_three(*pair)
    for one, other in zip(found, wanted, strict=True):
        same = (one.view(torch.int32) == other.view(torch.int32)) | (one.isnan() & other.isnan())
        assert same.all()
