"""Running maxima and minima with their places: eager's bits, for ties, NaN and infinities too."""

from __future__ import annotations

import math

import pytest
import torch

import torchweld
from torchweld.exact.verify import verify
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.nodes import Extern

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
SHAPES = (((5, 200), 1), ((37, 65), 0), ((3, 33, 40), 1), ((7, 1), 1), ((130, 3), 0))


def with_ties(shape, dtype):
    """Few values, so that many are equal; of floats, some are infinite or NaN."""
    generator = torch.Generator().manual_seed(0)
    if not dtype.is_floating_point:
        return torch.randint(0, 9, shape, generator=generator).to(dtype)
    x = (torch.randn(shape, generator=generator) * 2).round() / 2
    for place, value in ((37, -math.inf), (29, math.inf), (61, math.nan)):
        x.view(-1)[place::101] = value
    return x.to(dtype)


def same(found, wanted) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)


def calls(fused) -> set[str]:
    """What is left to libraries, in inference and in training."""
    nodes = (n for record in torchweld.records(fused) for n in record.graph.nodes)
    return {n.target for n in nodes if isinstance(n, Extern)}


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
@pytest.mark.parametrize("running", [torch.cummax, torch.cummin])
def test_running_extremes(running, dtype):
    for shape, d in SHAPES:
        torch.compiler.reset()
        x, fused = with_ties(shape, dtype), torchweld.fuse(lambda x, d=d: running(x, d))
        assert same(fused(x), running(x, d)), (shape, d)
        assert not calls(fused)


def test_places_that_nobody_reads_are_not_made():
    torch.compiler.reset()
    fused = torchweld.fuse(lambda x: x.exp().cummax(1)[0] * 2)
    x = with_ties((5, 200), torch.float32)
    torch.testing.assert_close(fused(x), x.exp().cummax(1)[0] * 2, equal_nan=True)
    (record,) = torchweld.records(fused)
    assert sum(type(i).__name__ == "Scan" for i in record.graph.nodes[0].body) == 1


@pytest.mark.parametrize("function", [
    lambda x: (x.cumsum(1).cummax(1).values - x.cumsum(1)).amax(1),
    lambda x: torch.cummin(x.sigmoid(), 0)[0] * x,
    lambda x: torch.cummax(x, 1).indices * 2 + x.argmax(1, keepdim=True),
    lambda x: x.flip(1).cummax(1)[0].flip(1),
    lambda x: torch.cummax(x.flip(1), 1)[1].flip(1),
], ids=["fall", "first", "places", "from the end", "places from the end"])  # fmt: skip
def test_with_work_around(function):
    torch.compiler.reset()
    x = torch.randn(13, 131, generator=torch.Generator().manual_seed(1))
    x[3, :70] = x[3, 0]
    trains = function(x).is_floating_point()
    fused = torchweld.fuse(lambda x: function(x))
    report = verify(lambda x: function(x), fused, x, train=trains)
    assert report.ok, str(report)
    assert calls(fused) <= {CHECK_INDEX}  # of the gradient, a sum by index
