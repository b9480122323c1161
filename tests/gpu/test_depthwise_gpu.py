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
    backward = [n for n in calls if n.target == "aten.convolution_backward.default"]
    taps = times * model.convolution.weight[0].numel()
    assert all(n.outputs[0] is None for n in backward) or taps > 27


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("convolution", "image"), [
    (lambda: nn.Conv3d(24, 24, 3, padding=1, groups=24), (2, 24, 9, 13, 15)),
    (lambda: nn.Conv3d(24, 24, 3, 2, 1, groups=24), (2, 24, 9, 13, 15)),
    (lambda: nn.ConvTranspose2d(24, 24, 4, 2, 1, groups=24), (3, 24, 19, 23)),
    (lambda: nn.Conv1d(24, 24, 9, padding=4, groups=24), (3, 24, 301)),
    (lambda: nn.Conv2d(3, 3, 3, padding=1), (3, 3, 19, 23)),
])  # fmt: skip
def test_volumes_and_transposed_ones(convolution, image, train, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Tanh(), convolution(), nn.SiLU()).to("cuda", dtype).train(train)
    x = torch.randn(image, device="cuda", dtype=dtype)
    fused = torchweld.fuse(model)
    assert verify(model, fused, (x,), train=train, seeds=(0,)).ok
    calls = [n for r in records(fused) for n in r.graph.nodes if hasattr(n, "target")]
    assert not any(n.target == "aten.convolution.default" for n in calls)


@pytest.mark.parametrize("how", [dict(kernel_size=3, padding=1), dict(kernel_size=5, padding=2),
                                 dict(kernel_size=3, padding=1, stride=2)], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neighbours_share_what_they_read(how, dtype):
    """Images so large that each thread has several results; no count of them divides 57."""
    torch.manual_seed(0)
    model = Block(88, 1, how).to("cuda", dtype, memory_format=torch.channels_last).eval()
    x = torch.randn(32, 88, 57, 39, device="cuda", dtype=dtype)
    x = x.to(memory_format=torch.channels_last)
    fused = torchweld.fuse(model)
    assert verify(model, fused, (x,), seeds=(0,)).ok
    comps = (n for r in records(fused) for n in r.graph.nodes if hasattr(n, "stores"))
    assert any(len(comp.stores) > 1 for comp in comps)


def test_branches_that_are_stacked_and_summed():
    torch.manual_seed(0)

    def branches(x, y, p):
        return (torch.stack([x.relu(), y.sigmoid()], 1) * p.softmax(1)).sum(1)

    x, y = torch.randn(2, 5, 24, 33, 35, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    p = torch.randn(5, 2, 24, 1, 1, device="cuda", dtype=torch.bfloat16)
    fused = torchweld.fuse(branches)
    assert verify(branches, fused, (x, y, p), seeds=(0,)).ok
