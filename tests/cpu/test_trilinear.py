"""`F.bilinear` and its gradients are two products each (capture/trilinear.py)."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.capture.trilinear import trilinear
from torchweld.exact.verify import verify

aten = torch.ops.aten
FORMS = {
    "bilinear": ((5, 7), (3, 7, 4), (5, 4), [1, 3], [0], [1, 2], [2, 3]),
    "gradient of the weight": ((5, 7), (5, 3), (5, 4), [1, 3], [2, 3], [1, 2], [0]),
    "gradient of a factor": ((5, 3), (3, 7, 4), (5, 4), [2, 3], [0], [1, 2], [1, 3]),
    "a dimension of the last alone": ((5,), (5, 4), (4, 6), [1, 2], [2], [0], [2]),
    "a dimension of the first alone": ((5, 6), (5, 4), (4,), [1], [2], [0, 2], [2, 1]),
    "nothing is summed": ((5, 6), (5,), (6,), [], [1], [0], []),
    "no points": ((0, 7), (3, 7, 4), (0, 4), [1, 3], [0], [1, 2], [2, 3]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_it_is_the_same_sum(form):
    *shapes, expand_a, expand_b, expand_c, summed = form
    given = [torch.randn(s, dtype=torch.float64) for s in shapes]
    found = trilinear(*given, expand_a, expand_b, expand_c, summed)
    wanted = aten._trilinear(*given, expand_a, expand_b, expand_c, summed)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bilinear_layers(dtype):
    module = torch.nn.Bilinear(7, 5, 3).to(dtype)
    given = torch.randn(2, 9, 7, dtype=dtype), torch.randn(2, 9, 5, dtype=dtype)
    fused = torchweld.fuse(module)
    assert verify(module, fused, given, train=True, seeds=(0,)).ok
    nodes = [n for r in torchweld.records(fused) for n in r.graph.nodes]
    called = any("trilinear" in getattr(n, "target", "") for n in nodes)
    assert called == (dtype == torch.bfloat16)
