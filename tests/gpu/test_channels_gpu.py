"""Convolutions on a GPU: channels innermost inside, no conversions around the calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchweld
from torchweld.exact.verify import verify


class Residual(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.wide = nn.Conv2d(width, width, 3, padding=1, groups=groups)
        self.norm = nn.BatchNorm2d(width)
        self.down = nn.ConvTranspose2d(width, width, 2, stride=2)

    def forward(self, x):
        x = self.pool(self.stem(x).relu())
        x = (x + self.norm(self.wide(x))).relu()
        return self.down(x), x.mean((2, 3))


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("width,groups", [(16, 1), (17, 1), (24, 24), (24, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_convolutions(dtype, width, groups, last, train):
    torch.manual_seed(0)
    how = torch.channels_last if last else torch.contiguous_format
    model = Residual(width, groups).to("cuda", dtype).train(train).to(memory_format=how)
    x = torch.randn(3, 3, 37, 41, device="cuda", dtype=dtype).to(memory_format=how)
    fused = torchweld.fuse(model)
    report = verify(model, fused, x, train=train)
    assert report.ok, str(report)


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
def test_results_of_calls_are_not_copied(last):
    torch.manual_seed(0)
    how = torch.channels_last if last else torch.contiguous_format
    model = Residual(16, 1).to("cuda", torch.bfloat16).eval().to(memory_format=how)
    x = torch.randn(3, 3, 37, 41, device="cuda").bfloat16().to(memory_format=how)
    fused = torchweld.fuse(model)
    with torch.no_grad():
        torch.testing.assert_close(fused(x)[1], model(x)[1], atol=0.02, rtol=0.02)
    notes = [e for r in torchweld.api.records(fused) for e in r.events]
    assert len([e for e in notes if "copied" in e.kind]) <= 1  # the image that is returned
