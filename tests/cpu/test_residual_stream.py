"""A residual stream after a permuted convolution: exact, and laid out as in eager outside."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.exact.verify import verify


class Encoder(nn.Module):
    """A convolution, permuted, with positions; two LayerNorm -> Linear -> residual."""

    def __init__(self, width: int = 17, length: int = 13) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, width, 3, padding=1)
        self.positions = nn.Parameter(torch.randn(length, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        x = F.gelu(self.conv(x)).permute(0, 2, 1) + self.positions
        for norm, linear in zip(self.norms, self.linears):
            x = x + linear(norm(x))
        return x


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_permuted_residual_stream(dtype, train):
    torch.manual_seed(0)
    model, x = Encoder().to(dtype), torch.randn(3, 5, 13).to(dtype)
    fused = torchweld.fuse(model)
    report = verify(model, fused, x, train=train)
    assert report.ok, str(report)
    with torch.set_grad_enabled(train):
        expected, got = model(x), fused(x)
    assert got.stride() == expected.stride() == (17 * 13, 1, 13)


def test_only_the_convolution_and_the_output_are_permuted():
    model = Encoder().eval()
    fused = torchweld.fuse(model)
    with torch.no_grad():
        fused(torch.randn(3, 5, 13))
    (record,) = torchweld.records(fused)
    permuted = [b for b in record.graph.buffers.values() if b.strides == (17 * 13, 1, 13)]
    assert [b.name for b in permuted] == [v.buffer for v in record.graph.outputs]
