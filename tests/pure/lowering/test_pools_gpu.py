"""Maxima of windows of volumes on a GPU: kernels, with eager's maxima and positions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture.captured import Captured
from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp


@pytest.mark.parametrize("placed", [False, True])
def test_windows_of_27(placed):
    def run(x):
        found = F.max_pool3d_with_indices(x, 3, 2, 1)
        return list(found) if placed else [found[0]]

    x = torch.randn(2, 3, 5, 7, 6)
    x.view(-1)[::31], x.view(-1)[::17] = float("nan"), -float("inf")
    captured = Captured(make_fx(run)(x.to("meta")), "test", "inference")
    graph = lower(captured, Options()).graph
    assert [type(n) for n in graph.nodes] == [Comp]
    for found, expected in zip(run_graph(graph, [x], exact=False), run(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
