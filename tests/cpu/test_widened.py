"""Convolutions in 16-bit types without instructions for them: in float32, as exact as eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchweld
from torchweld.core import dtypes
from torchweld.ir.nodes import Extern
from torchweld.passes import widened
from torchweld.plan import cpu_products

CASES = {
    "image": (nn.Conv2d(5, 9, 3, padding=1), (2, 5, 12, 11)),
    "one image": (nn.Conv2d(5, 9, 3, 2, bias=False), (1, 5, 12, 11)),
    "groups": (nn.Conv2d(6, 8, 3, groups=2), (2, 6, 9, 9)),
    "transposed": (nn.ConvTranspose2d(6, 4, 2, 2), (2, 6, 5, 7)),
    "sequence": (nn.Conv1d(3, 8, 4, 2), (2, 3, 40)),
    "volume": (nn.Conv3d(2, 8, 3), (1, 2, 6, 7, 8)),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_exact_as_eager(monkeypatch, name, last):
    for module in (cpu_products, widened):
        monkeypatch.setattr(module, "narrow_types", lambda: frozenset((dtypes.f16,)))
    torch.manual_seed(0)
    torch._dynamo.reset()
    convolution, shape = CASES[name]
    model = nn.Sequential(nn.ReLU(), convolution, nn.ReLU()).half().eval()
    x = torch.randn(shape).half()
    x = x.to(memory_format=torch.channels_last) if last and x.dim() == 4 else x
    fused = torchweld.fuse(model)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        found, expected = fused(x), model(x)
    assert found.dtype == torch.float16 and found.stride() == expected.stride()
    torch.testing.assert_close(found.double(), exact, rtol=2e-3, atol=2e-3)
    graphs = [r.graph for r in torchweld.records(fused)]
    read = {g.buffers[b].dtype for g in graphs for n in g.nodes if isinstance(n, Extern)
            for b in n.reads}  # fmt: skip
    assert graphs and read <= {dtypes.f32}
