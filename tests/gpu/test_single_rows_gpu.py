"""Steps of decoding by hand whose scores are wanted, and other batches of products with one row: as
exact as eager."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.capture.wide_scores import WIDE_PRODUCT
from torchweld.exact.budget import compare
from torchweld.exact.verify import verify

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Step(torch.nn.Module):
    """One query for each row of a cache that holds heads side by side."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, q, k, v):
        batch, keys, _ = k.shape
        q = q.view(batch, 1, self.heads, -1).transpose(1, 2)
        k, v = (t.view(batch, keys, self.heads, -1).transpose(1, 2) for t in (k, v))
        scores = (q * 0.3) @ (k * 0.3).transpose(-1, -2)
        return (scores.float().softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(1), scores


class Rows(torch.nn.Module):
    """A vector and a matrix for each of a batch, either way round."""

    def forward(self, x, w):
        return torch.relu((x[:, None] * 0.5) @ w)[:, 0] + (w @ x[..., None])[..., 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("sizes", [(3, 2, 17, 24), (40, 20, 500, 64), (1, 8, 4097, 128)])
def test_a_step_of_decoding(sizes, train, dtype):
    batch, heads, keys, depth = sizes
    torch.manual_seed(0)
    shapes = (batch, heads * depth), *[(batch, keys, heads * depth)] * 2
    args = [torch.randn(s, device="cuda", dtype=dtype, requires_grad=train) for s in shapes]
    model = Step(heads)
    assert verify(model, torchweld.fuse(model), tuple(args), train=train, seeds=(0,)).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 1000), (5, 33), (64, 256)])
def test_rows_and_columns(sizes, dtype):
    count, side = sizes
    torch.manual_seed(0)
    shapes = (count, side), (count, side, side)
    args = [torch.randn(s, device="cuda", dtype=dtype) for s in shapes]
    model = Rows()
    assert verify(model, torchweld.fuse(model), tuple(args), seeds=(0,)).ok


class Moved(torch.nn.Module):
    """Points by a few weights for each image, whose gradients are sums over all points."""

    def forward(self, x, w, v):
        return torch.tanh(x @ w), torch.tanh(x.flatten(0, 1) @ v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(17, 9001, 3, 2), (1, 70000, 4, 4), (300, 1600, 2, 5)])
def test_a_few_long_sums(sizes, dtype):
    count, points, rows, columns = sizes
    torch.manual_seed(0)
    shapes = (count, points, rows), (count, rows, columns), (rows, columns)
    args = [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in shapes]
    model = Moved()
    assert verify(model, torchweld.fuse(model), tuple(args), train=True, seeds=(0,)).ok


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_wide_products_are_one_call_of_the_library(dtype):
    """Their sums are float32, of factors as they are."""
    torch.manual_seed(0)
    a = torch.randn(3, 2, 70, 50, device="cuda", dtype=dtype)[:, 1]
    b = torch.randn(3, 90, 50, device="cuda", dtype=dtype).mT
    WIDE_PRODUCT(a, b)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        made = WIDE_PRODUCT(a, b)
        torch.cuda.synchronize()
    kernels = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert made.dtype == torch.float32 and len(kernels) == 1, kernels
    wide = torch.bmm(a.float(), b.float())
    assert compare("wide", made, wide, torch.bmm(a.double(), b.double())).ok
