"""logcumsumexp as a scan: against float64, with infinities and NaN where eager has them."""

from __future__ import annotations

import math

import pytest
import torch

import torchweld
from torchweld.exact.verify import verify
from torchweld.ir.nodes import Extern

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = (((5, 200), 1), ((37, 65), 0), ((3, 33, 40), 1), ((7, 1), 1), ((300, 7), 0))


def has_calls(fused) -> bool:
    nodes = (n for record in torchweld.records(fused) for n in record.graph.nodes)
    return any(isinstance(n, Extern) for n in nodes)


def compare(x: torch.Tensor, d: int) -> None:
    """Within three units in the last place of eager's result in float64, which is rounded once for
    each element itself: of float64 they are more."""
    torch.compiler.reset()
    fused = torchweld.fuse(lambda x: x.logcumsumexp(d))
    found, exact = fused(x), x.double().logcumsumexp(d)
    assert not has_calls(fused)
    unit = (30 if x.dtype == torch.float64 else 3) * torch.finfo(x.dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=unit, atol=unit, equal_nan=True)


def randn(shape, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_float64(dtype):
    for shape, d in SHAPES:
        compare(randn(shape, dtype), d)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_and_nan(dtype):
    for shape, d in SHAPES:
        x = randn(shape, dtype, 3.0)
        x.narrow(d, 0, x.shape[d] // 3)[...] = -math.inf  # nothing yet
        for place, value in ((37, -math.inf), (29, math.inf), (31, math.nan)):
            x.view(-1)[place::301] = value
        compare(x, d)
    for value in (math.inf, -math.inf, math.nan):
        compare(torch.full((3, 70), value, dtype=dtype), 1)


def test_far_apart_and_much_alike():
    ramp = torch.linspace(-3000.0, 3000.0, 999)
    steep = torch.stack([ramp, ramp.flip(0), ramp * 1e34, torch.zeros(999), ramp / 50])
    for d, x in ((1, steep), (0, steep.t().contiguous())):
        compare(x, d)


def test_what_is_small_beside_the_maximum_is_kept():
    """log(1 + exp(-20)), which is lost where the maximum's own 1 is part of the sum."""
    x = torch.tensor([[0.0, -20.0, -30.0], [-40.0, 0.0, -20.0]])
    for d, rows in ((1, x), (0, x.t().contiguous())):
        torch.compiler.reset()
        found = torchweld.fuse(lambda x, d=d: x.logcumsumexp(d))(rows)
        exact = rows.double().logcumsumexp(d).float()
        torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("function", [
    lambda x: torch.logcumsumexp(x.sigmoid(), 1) * x,
    lambda x: torch.logcumsumexp(x.flip(1), 1).flip(1),
    lambda x: (y := torch.logcumsumexp(x, 1)) / y.square().sum(1, keepdim=True),
    lambda x: torch.exp((y := x.cumsum(1)) + torch.logcumsumexp(x - y, 1)),
    lambda x: torch.logcumsumexp(x, 0).cos() - torch.cumsum(x, 0),
], ids=["around", "from the end", "kept", "of sums", "first"])  # fmt: skip
@pytest.mark.parametrize("columns", [1, 64, 131])
def test_with_work_around(function, columns):
    torch.compiler.reset()
    x = randn((13, columns))
    fused = torchweld.fuse(lambda x: function(x))
    report = verify(lambda x: function(x), fused, x, train=columns == 131)
    assert report.ok, str(report)
    assert not has_calls(fused)
