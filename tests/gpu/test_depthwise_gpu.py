"""Depthwise convolutions on a GPU as pointwise kernels: exact as eager, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchweld
from torchweld.api import records
from torchweld.exact.verify import verify

CASES = [
    (40, 1, dict(kernel_size=3, padding=1)),
    (64, 2, dict(kernel_size=7, padding=3)),
    (24, 2, dict(kernel_size=5, padding=2, stride=2)),
    (36, 1, dict(kernel_size=(3, 5), padding=(2, 4), dilation=2, bias=False)),
]


class Block(nn.Module):
    def __init__(self, channels: int, times: int, how: dict) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels * times, groups=channels, **how)
        self.norm = nn.BatchNorm2d(channels * times)

    def forward(self, x):
        return nn.functional.silu(self.norm(self.convolution(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("channels", "times", "how"), CASES)
def test_as_exact_as_eager(channels, times, how, train, last, dtype):
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    model = Block(channels, times, how).to("cuda", dtype, memory_format=layout).train(train)
    x = torch.randn(3, channels, 19, 23, device="cuda", dtype=dtype).to(memory_format=layout)
    fused = torchweld.fuse(model)
    assert verify(model, fused, (x,), train=train, seeds=(0,)).ok
    calls = [n for r in records(fused) for n in r.graph.nodes if hasattr(n, "target")]
    assert not any(n.target == "aten.convolution.default" for n in calls)
