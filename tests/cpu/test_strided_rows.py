"""Norms and softmaxes of sums of which one operand lies in memory by columns."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import torchweld

LAYOUTS = {
    "columns": lambda b, r, c: torch.randn(b, c, r).transpose(1, 2),
    "columns of pairs": lambda b, r, c: torch.randn(b, c, r, 2)[..., 0].transpose(1, 2),
    "every third": lambda b, r, c: torch.randn(b, r, 3 * c)[..., ::3],
    "backwards": lambda b, r, c: torch.randn(b, r, c).flip(-1),
    "equal rows": lambda b, r, c: torch.randn(b, 1, c).expand(b, r, c),
}
MODELS = {
    "layer norm": lambda x, y: functional.layer_norm(x + y, x.shape[-1:]),
    "softmax": lambda x, y: (x * y).softmax(-1),
    "deviation": lambda x, y: (x - y).std(-1),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_exact_as_eager(model, layout):
    torch._dynamo.reset()
    torch.manual_seed(0)
    fused = torchweld.fuse(MODELS[model])
    shapes = ((3, 17, 33), (2, 40, 200))
    for shape in shapes if model == "softmax" else shapes[1:]:
        x, y = torch.randn(shape), LAYOUTS[layout](*shape)
        y[..., -1, 0] = torch.nan
        exact, eager = MODELS[model](x.double(), y.double()), MODELS[model](x, y)
        errors = [(found.double() - exact).abs() for found in (eager, fused(x, y))]
        assert torch.equal(errors[0].isnan(), errors[1].isnan())
        most, ours = (e.nan_to_num(0).max().item() for e in errors)
        assert ours <= 3 * most + 1e-6


def test_float64():
    torch._dynamo.reset()
    x = torch.randn(2, 19, 47, dtype=torch.float64)
    y = torch.randn(2, 47, 19, dtype=torch.float64).transpose(1, 2)
    found = torchweld.fuse(MODELS["layer norm"])(x, y)
    torch.testing.assert_close(found, MODELS["layer norm"](x, y))


def test_bfloat16():
    torch._dynamo.reset()
    x = torch.randn(2, 19, 47, dtype=torch.bfloat16)
    y = torch.randn(2, 47, 19, dtype=torch.bfloat16).transpose(1, 2)
    model, exact = MODELS["layer norm"], MODELS["layer norm"](x.double(), y.double())
    ours, eager = ((f(x, y).double() - exact).norm() for f in (torchweld.fuse(model), model))
    assert ours <= 1.5 * eager
