"""Models of complex numbers on a GPU: as exact as eager, in kernels."""

from __future__ import annotations

import pytest
import torch

import torchweld
from complex_models import MODELS, ON_COMPLEX
from torchweld.exact.verify import verify

pytestmark = pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning")


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_as_exact_as_eager(name, train):
    torch.manual_seed(0)
    make, shapes = MODELS[name]
    model, inputs = make().cuda(), tuple(torch.randn(shape, device="cuda") for shape in shapes)
    fused = torchweld.fuse(model)
    report = verify(model, fused, inputs, train=train)
    assert report.ok, str(report)
    nodes = [n for r in torchweld.records(fused) for n in r.graph.nodes]
    assert not [n for n in nodes if getattr(n, "target", "").startswith(ON_COMPLEX)]
