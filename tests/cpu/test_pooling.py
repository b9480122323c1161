"""Max pooling as a kernel: bitwise eager's, NaN and infinities among the elements."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from pairs import pairs
from torchweld.ir.nodes import Extern
from torchweld.targets.find import target_of

WINDOWS = [  # kernel, stride, padding, dilation, rounded up, shape
    (3, 2, 1, 1, False, (2, 5, 17, 16)),
    (2, None, 0, 1, False, (1, 3, 7, 7)),
    ((2, 3), (1, 2), (1, 1), 2, True, (2, 3, 11, 12)),
    (3, 2, 1, 1, True, (3, 8, 8)),
    (3, 1, 1, 1, False, (0, 2, 5, 5)),
    (3, 3, 0, 1, True, (2, 2, 7, 8)),
    (5, 1, 2, 1, False, (1, 2, 9, 9)),
    (6, 1, 2, 1, False, (1, 2, 9, 9)),
    (2, None, 0, 1, False, (2, 3, 5, 7, 8)),
    ((2, 3, 2), (1, 2, 2), 1, (1, 1, 2), True, (2, 3, 4, 7, 9)),
    (3, 2, 1, 1, False, (1, 3, 6, 7, 8)),
    (11, 1, 5, 1, False, (2, 3, 19, 23)),
    ((2, 40), (1, 20), 0, 1, True, (2, 3, 5, 130)),
    ((9, 33), (4, 1), (4, 16), (2, 1), True, (1, 3, 27, 40)),
    (5, 2, 1, 1, False, (1, 3, 7, 9, 8)),
]


class Pool(nn.Module):
    def __init__(self, window) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding, self.dilation, self.ceil = window

    def forward(self, x):
        how = dict(padding=self.padding, dilation=self.dilation, ceil_mode=self.ceil)
        pool = F.max_pool3d if x.dim() == 5 else F.max_pool2d
        return pool(x.relu() - 1, self.kernel, self.stride, **how)


@pytest.mark.parametrize(("window", "last", "dtype"), pairs(
    WINDOWS, (False, True), (torch.float32, torch.bfloat16, torch.float16)
))  # fmt: skip
def test_max_pool(window, last, dtype):
    *window, shape = window
    x = torch.randn(shape).to(dtype)
    if x.numel():
        x.view(-1)[3], x.view(-1)[9] = float("nan"), -float("inf")
    if last and len(shape) > 3:
        x = x.to(memory_format=torch.channels_last_3d if len(shape) == 5 else torch.channels_last)
    torch._dynamo.reset()
    model = Pool(window)
    fused = torchweld.fuse(model)
    with torch.no_grad():
        got, expected = fused(x), model(x)
    assert got.stride() == expected.stride() and got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    nodes = [n for r in torchweld.api.records(fused) for n in r.graph.nodes]
    assert nodes and not any(isinstance(n, Extern) for n in nodes)


@pytest.mark.parametrize("shape", [(2, 3, 7, 9, 40), (3, 5, 33, 35), (2, 4, 130)], ids=str)
def test_what_follows_is_in_the_kernel(shape):
    pool = {5: F.max_pool3d, 4: F.max_pool2d, 3: F.max_pool1d}[len(shape)]
    x = torch.randn(shape)
    torch.compiler.reset()
    other = torch.randn(pool(x, 3, 2, 1).shape)

    def function(x, other):
        return (pool(x, 3, 2, 1) + other).relu() * 2

    fused = torchweld.fuse(function)
    with torch.no_grad():
        torch.testing.assert_close(fused(x, other), function(x, other), rtol=0, atol=0)
    (record,) = torchweld.api.records(fused)
    (text,) = [s.text for b in record.bundles.values() for s in b.sources]
    masked = "avx512" in target_of("cpu").features  # loads; without, it is a kernel like any other
    assert ("tw_pool(a" in text) == masked


ALONG_ROWS = [(2, 2, 0, 1), (3, 1, 1, 1), (5, 3, 2, 1), (8, 1, 4, 3), (4, 5, 1, 2)]


@pytest.mark.parametrize("width", [1, 5, 15, 16, 17, 31, 33, 64, 130, 300])
@pytest.mark.parametrize("window", ALONG_ROWS)
def test_rows_of_any_width(width, window):
    kernel, stride, padding, dilation = window
    if width + 2 * padding < dilation * (kernel - 1) + 1:
        pytest.skip("eager refuses it")
    torch.compiler.reset()
    x = torch.randn(3, 7, width)
    x.view(-1)[::11] = torch.nan

    def function(x):
        return F.max_pool1d(x, kernel, stride, padding, dilation)

    with torch.no_grad():
        found = torchweld.fuse(function)(x)
        torch.testing.assert_close(found, function(x), rtol=0, atol=0, equal_nan=True)


def test_columns_that_are_not_adjacent():
    """A short lane is written out: what its segments read is not copied before it."""
    torch.compiler.reset()
    x = torch.randn(3, 3, 16, 40).mT

    def function(x):
        return F.max_pool2d(x, (4, 3), (2, 3), (2, 1), (1, 2))

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        torch.testing.assert_close(torchweld.fuse(function)(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("stride", [16, 17, 200_000])
def test_windows_far_from_each_other(stride):
    """In steps of 200,000, a row of maxima at every element is no array for a stack."""

    def call(x):
        return F.max_pool1d(x, 2, stride).exp()

    x = torch.randn(2, 3, 33 * min(stride, 20_000), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torchweld.fuse(call)(x), call(x))


def boundary(target):
    """The edges of each class of a mask, one_hot's with channels last, and how near they are."""
    image = 1 - F.one_hot(target, 5).permute(0, 3, 1, 2).float()
    edge = F.max_pool2d(image, 3, stride=1, padding=1) - image
    near = F.max_pool2d(edge, 5, stride=1, padding=2)
    return (near * edge).sum((2, 3)) / (edge.sum((2, 3)) + 1e-6), near.mean((2, 3))


@pytest.mark.parametrize("shape", [(2, 84, 98), (1, 5, 7), (3, 1, 33)])
def test_masks_of_classes_are_taken_apart_and_pooled_before_they_are_summed(shape):
    torch.compiler.reset()
    target, fused = torch.randint(0, 5, shape), torchweld.fuse(boundary)
    for ours, eager in zip(fused(target), boundary(target)):
        torch.testing.assert_close(ours, eager)
    (record,) = torchweld.api.records(fused)
    if "avx512" in target_of("cpu").features and shape == (2, 84, 98):
        texts = [s.text for b in record.bundles.values() for s in b.sources]
        assert sum("tw_pool(a" in text for text in texts) == 2
