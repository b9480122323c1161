"""Average pooling as a kernel: bitwise eager's, where windows have few elements. Larger ones are
added up along one axis after the other, and are as exact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from pairs import pairs
from torchweld.ir.nodes import Extern

WINDOWS = [  # arguments, whether windows are added up by axes
    (dict(kernel_size=2), False),
    (dict(kernel_size=3, stride=2, padding=1), False),
    (dict(kernel_size=(3, 2), stride=1, divisor_override=5), False),
    (dict(kernel_size=3, stride=2, padding=1, count_include_pad=False), False),
    (dict(kernel_size=3, stride=2, ceil_mode=True), False),
    (dict(kernel_size=3, stride=2, padding=1, ceil_mode=True), False),
    (dict(kernel_size=5), True),
    (dict(kernel_size=(7, 3), stride=(2, 1), padding=(3, 1), count_include_pad=False), True),
    (dict(kernel_size=(5, 4), stride=3, padding=2, ceil_mode=True), True),
    (dict(kernel_size=(5, 4), stride=1, padding=1, divisor_override=7), True),
]
VOLUMES = [
    (dict(kernel_size=2), False),
    (dict(kernel_size=(3, 2, 2), stride=2, padding=1), False),
    (dict(kernel_size=2, padding=1, count_include_pad=False), False),
    (dict(kernel_size=3), True),
    (dict(kernel_size=(3, 1, 6), stride=(2, 2, 3), padding=(1, 0, 2)), True),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how, large", VOLUMES, ids=str)
def test_average_of_volumes(how, large, dtype):
    check(F.avg_pool3d, torch.randn(2, 3, 5, 7, 8).to(dtype), how, False, exact=not large)


@pytest.mark.parametrize("how", [
    dict(kernel_size=40, stride=10, padding=3), dict(kernel_size=26, ceil_mode=True, stride=4),
], ids=str)  # fmt: skip
def test_average_of_long_lines(how):
    check(F.avg_pool1d, torch.randn(2, 3, 333), how, False, exact=False)


@pytest.mark.parametrize(("window", "shape", "dtype"), pairs(
    WINDOWS, ((2, 3, 17, 18), (3, 9, 8)), (torch.float32, torch.bfloat16, torch.float64)
))  # fmt: skip
def test_average(window, shape, dtype):
    how, large = window
    check(F.avg_pool2d, torch.randn(shape).to(dtype), how, False, exact=not large)


ADAPTIVE = [  # size of the image, of the result, whether ATen's call stays
    ((13, 7), (6, 7), False),
    ((8, 12), (4, 3), False),
    ((9, 5), 1, False),
    ((5, 1), (1, 1), False),
    ((10, 10), (7, 5), True),
    ((40, 40), (5, 5), False),
    ((41, 40), (5, 5), False),
    ((1, 1), (2, 3), False),
    ((4, 1), (2, 3), False),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size, out, is_call", ADAPTIVE, ids=str)
def test_adaptive(size, out, is_call, dtype):
    how = dict(output_size=out)
    check(F.adaptive_avg_pool2d, torch.randn(2, 3, *size).to(dtype), how, is_call, exact=False)


def test_adaptive_volumes():
    how = dict(output_size=(2, 4, 3))
    check(F.adaptive_avg_pool3d, torch.randn(2, 3, 4, 8, 6), how, False, exact=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_images(dtype):
    how = dict(kernel_size=(7, 9))
    check(F.avg_pool2d, torch.randn(2, 3, 7, 9).to(dtype), how, False, exact=False)


def check(pool, x, how, is_call, exact=True):
    torch._dynamo.reset()
    fused = torchweld.fuse(lambda x: pool(x, **how))
    with torch.no_grad():
        got, expected = fused(x), pool(x, **how)
    assert got.stride() == expected.stride()
    near = dict(rtol=0, atol=0) if exact else {}
    torch.testing.assert_close(got, expected, **near)
    right = pool(x.double(), **how)
    errors = [(y.double() - right).norm() for y in (got, expected)]
    assert errors[0] <= 1.1 * errors[1] + torch.finfo(x.dtype).eps * right.norm() / 2
    nodes = [n for r in torchweld.api.records(fused) for n in r.graph.nodes]
    assert any(isinstance(n, Extern) for n in nodes) == is_call


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(0, 3), (0, 4, 6), (2, 0, 6)], ids=str)
def test_images_of_nothing(shape):
    torch.compiler.reset()
    fused = torchweld.fuse(lambda x: F.adaptive_avg_pool1d(x, 3) * 2)
    assert fused(torch.randn(shape)).shape == (*shape[:-1], 3)
