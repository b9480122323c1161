"""Adaptive pooling, and images resized by any factor, forward and backward on a GPU: as near to
float64 as eager, without ATen's calls, the same each time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.ir.nodes import Extern

MODELS = {
    "averages": lambda x: F.adaptive_avg_pool2d(x.sin(), (6, 3)),
    "averages of large windows": lambda x: F.adaptive_avg_pool2d(x.sin(), (3, 2)) * 2,
    "more than there are": lambda x: F.adaptive_avg_pool2d(x.sin(), (51, 40)).tanh(),
    "maxima": lambda x: F.adaptive_max_pool2d(x * 2, (7, 5)),
    "maxima less averages": lambda x: (
        F.adaptive_max_pool2d(x * 2, (7, 5)) - F.adaptive_avg_pool2d(x * 2, (7, 5))
    ),
    "cubes": lambda x: F.adaptive_avg_pool3d(x[:, None] * 2, (3, 4, 5)),
    "larger": lambda x: F.interpolate(x.sin(), size=(93, 95), mode="bilinear") ** 2,
    "corners": lambda x: (
        F.interpolate(x.sin(), size=(61, 64), mode="bilinear", align_corners=True) ** 2
    ),
    "from few": lambda x: F.interpolate(x[..., :2, :3].sin(), size=(93, 95), mode="bilinear") ** 2,
    "smaller": lambda x: F.interpolate(x.sin(), size=(19, 22), mode="bicubic") ** 2,
    "along one": lambda x: F.interpolate(x.flatten(2), size=1000, mode="linear").cos(),
}


def gradient(model, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad((model(x) * weights).sum(), x)[0]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients(name, dtype, last):
    torch.compiler.reset()
    torch.manual_seed(0)
    model = MODELS[name]
    x = torch.randn(2, 24, 37, 44, device="cuda", dtype=dtype)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    expected, exact = model(x), model(x.double())
    weights = torch.randn_like(expected)
    fused = torchweld.fuse(model)
    eager, true = gradient(model, x, weights), gradient(model, x.double(), weights.double())
    ours = gradient(fused, x, weights)
    with torch.no_grad():
        got = fused(x)
    assert got.stride() == expected.stride() and ours.stride() == eager.stride()
    eps = torch.finfo(dtype).eps
    for mine, other, right in ((got, expected, exact), (ours, eager, true)):
        error, allowed = ((t.double() - right).norm() for t in (mine, other))
        assert error <= 1.5 * allowed + eps * right.norm() / 2
    assert torch.equal(gradient(fused, x, weights), ours)
    for record in torchweld.records(fused):
        assert not [n.target for n in record.graph.nodes if isinstance(n, Extern)]
