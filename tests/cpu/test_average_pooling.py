"""Average pooling as a kernel: bitwise eager's, where all windows have one size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.ir.nodes import Extern

WINDOWS = [  # arguments, whether ATen's call stays
    (dict(kernel_size=2), False),
    (dict(kernel_size=3, stride=2, padding=1), False),
    (dict(kernel_size=(3, 2), stride=1, divisor_override=5), False),
    (dict(kernel_size=3, stride=2, padding=1, count_include_pad=False), True),
    (dict(kernel_size=3, stride=2, ceil_mode=True), True),
    (dict(kernel_size=5), True),
]
VOLUMES = [
    (dict(kernel_size=2), False),
    (dict(kernel_size=(3, 2, 2), stride=2, padding=1), False),
    (dict(kernel_size=2, padding=1, count_include_pad=False), True),
    (dict(kernel_size=3), True),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how, is_call", VOLUMES, ids=str)
def test_average_of_volumes(how, is_call, dtype):
    check(F.avg_pool3d, torch.randn(2, 3, 5, 7, 8).to(dtype), how, is_call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 17, 18), (3, 9, 8)], ids=str)
@pytest.mark.parametrize("how, is_call", WINDOWS, ids=str)
def test_average(how, is_call, shape, dtype):
    check(F.avg_pool2d, torch.randn(shape).to(dtype), how, is_call)


def check(pool, x, how, is_call):
    torch._dynamo.reset()
    fused = torchweld.fuse(lambda x: pool(x, **how))
    with torch.no_grad():
        got, expected = fused(x), pool(x, **how)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    nodes = [n for r in torchweld.api.records(fused) for n in r.graph.nodes]
    assert any(isinstance(n, Extern) for n in nodes) == is_call
