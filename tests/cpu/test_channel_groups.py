"""Norms over groups of channels, of images with channels last."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchweld
from pairs import pairs
from torchweld.exact.verify import verify


class Normalised(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return nn.functional.silu(self.norm(x)) + x


@pytest.mark.parametrize(("sizes", "dtype", "train"), pairs(
    (((2, 24, 9, 7), 8), ((1, 64, 17, 16), 32), ((3, 21, 5, 31), 3)),
    (torch.float32, torch.bfloat16), (False, True),
))  # fmt: skip
def test_group_norm(sizes, dtype, train):
    shape, groups = sizes
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Normalised(shape[1], groups).to(dtype).train(train)
    x = (torch.randn(shape) * 3 + 5).to(dtype).to(memory_format=torch.channels_last)
    fused = torchweld.fuse(model)
    report = verify(model, fused, x, train=train)
    assert report.ok, str(report)
    assert fused(x).stride() == model(x).stride()


def test_three_kernels():
    model = Normalised(64, 8).eval()
    x = torch.randn(2, 64, 9, 8).to(memory_format=torch.channels_last)
    fused = torchweld.fuse(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)
    (record,) = torchweld.records(fused)
    assert len(record.graph.nodes) == 3
