"""Rows abreast whose results lie along the columns, which are turned band by band: norms of
channels that lie first, into channels last."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.core.events import TorchweldWarning
from torchweld.exact.budget import compare

SHAPES = [(3, 64, 40), (2, 65, 17), (1, 130, 129), (5, 100, 16), (2, 300, 70), (1, 33, 255),
          (1, 257, 1024), (2, 300, 2048)]  # fmt: skip


def normed(x, weight, bias):
    return F.layer_norm(x.mT, (x.shape[1],), weight, bias)


def shares(x, weight, bias):
    """Two results, of which one lies as what is read."""
    found = (x * 2).softmax(1)
    return (found.mT * weight).contiguous(), found + 1, (x.mT - x.amax(1)[..., None]).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("function", [normed, shares])
def test_as_exact_as_eager(function, shape, dtype):
    torch.manual_seed(0)
    torch.compiler.reset()
    x, weight, bias = (torch.randn(s).to(dtype) for s in (shape, shape[1:2], shape[1:2]))
    fused = torchweld.fuse(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", TorchweldWarning)
        found, eager = fused(x, weight, bias), function(x, weight, bias)
        exact = function(*(t.double() for t in (x, weight, bias)))
    lists = ([t] if isinstance(t, torch.Tensor) else t for t in (found, eager, exact))
    for a, b, c in zip(*lists):
        assert a.stride() == b.stride()
        if dtype == torch.float64:  # nothing is more exact than eager
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        else:
            assert compare("result", a, b, c).ok


@pytest.mark.parametrize(("dtype", "pixels"), [(torch.float32, 1024), (torch.bfloat16, 196)])
def test_they_are_turned(dtype, pixels):
    """In float32 where the columns of a row fall into few sets of a cache."""
    x, weight = torch.randn(9, 300, pixels).to(dtype), torch.randn(300).to(dtype)
    torch.compiler.reset()
    fused = torchweld.fuse(normed)
    with torch.no_grad():
        fused(x, weight, weight)
    (record,) = torchweld.records(fused)
    (bundle,) = record.bundles.values()
    assert "tw_turn_tile(&u0" in bundle.sources[0].text
