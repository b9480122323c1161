"""A library call is given eager's strides: kernels refuse rows that begin at odd places."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld


@torch.library.custom_op("torchweld_tests::strides_of", mutates_args=())
def strides_of(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.stride())


@strides_of.register_fake
def _(x):
    return torch.empty(x.dim(), dtype=torch.int64)


@pytest.mark.parametrize("heads", [1, 4])
def test_rows_with_gaps_that_repeat(heads):
    """As attention pads a mask that it then expands: (0, 208, 16, 1), not (676, 169, 13, 1)."""

    def call(x):
        return strides_of(F.pad(x * 2, (0, 3))[..., :13].expand(2, 4, 13, 13))

    x = torch.randn(1, heads, 13, 13)
    assert torch.equal(torchweld.fuse(call)(x), call(x))
