"""Pools of large windows on a GPU: kernels of torchweld's, as exact as ATen's, maxima equal."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.ir.nodes import Extern

MAXIMA = {
    "maxima": lambda x: F.max_pool2d(x, 7, 1, 3),
    "one step of many": lambda x: F.max_pool2d(x, (2, 40), (1, 20)),
    "side by side": lambda x: F.max_pool2d(x, (8, 5)),
    "volumes": lambda x: F.max_pool3d(x.view(-1, 24, 16, 20, 10), 5, 1, 2),
    "a long line": lambda x: F.max_pool1d(x.flatten(2), 99, 7, 40),
    "behind an operation": lambda x: x.tanh() - F.max_pool2d(x.tanh(), 9, 1, 4),
}
AVERAGES = {
    "averages": lambda x: F.avg_pool2d(x, 11, 1),
    "inside alone": lambda x: F.avg_pool2d(x, 7, 2, 3, count_include_pad=False, ceil_mode=True),
    "a trend": lambda x: x.flatten(2) - F.avg_pool1d(x.flatten(2), 25, 1, 12),
    "of volumes": lambda x: F.avg_pool3d(x.view(-1, 24, 16, 20, 10), 3, 2, 1),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*MAXIMA, *AVERAGES])
def test_large_windows(name, dtype, last):
    torch.compiler.reset()
    torch.manual_seed(0)
    pool = (MAXIMA | AVERAGES)[name]
    x = torch.randn(4, 24, 40, 80, device="cuda", dtype=dtype)
    if last and "volumes" not in name:
        x = x.contiguous(memory_format=torch.channels_last)
    fused = torchweld.fuse(pool)
    with torch.no_grad():
        got, expected, exact = fused(x), pool(x), pool(x.double())
    assert got.stride() == expected.stride()
    if name in MAXIMA and "operation" not in name:
        assert torch.equal(got, expected)
    error, allowed = ((t.double() - exact).norm() for t in (got, expected))
    assert error <= 1.5 * allowed + torch.finfo(dtype).eps * exact.norm() / 2
    (record,) = torchweld.records(fused)
    assert not [n.target for n in record.graph.nodes if isinstance(n, Extern)]
