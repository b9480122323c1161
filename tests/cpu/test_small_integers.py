"""Extremes of integers of 8 and 16 bits: kernels, over rows and columns that end in a vector."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchweld

CASES = {
    "rows": ((3, 37), (1,)),
    "long rows": ((3, 1000), (1,)),
    "columns": ((37, 3), (0,)),
    "around": ((4, 6, 50), (0, 2)),
    "blocks": ((5, 14, 7, 40), (1, 3)),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("name", CASES)
def test_extremes(name, dtype):
    shape, dims = CASES[name]

    def extremes(x):
        halves = x // 2 + 1
        return halves.amax(dims), halves.amin(dims), x.amax(dims)

    torch.compiler.reset()
    x = torch.randint(-100, 100, shape).to(dtype)
    fused = torchweld.fuse(lambda x: extremes(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fused(x)
    assert all(map(torch.equal, found, extremes(x)))
    assert any(r.bundles for r in torchweld.records(fused))
