"""Pools on a GPU: kernels, with eager's maxima and positions, and averages."""

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


LARGE = {
    "maxima": (lambda x: F.max_pool2d(x, 7, 1, 3), (2, 3, 13, 11)),
    "few results": (
        lambda x: F.max_pool2d(x, (9, 4), (5, 1), (2, 0), ceil_mode=True), (1, 2, 30, 9),
    ),
    "side by side": (lambda x: F.max_pool2d(x, (8, 5)), (2, 3, 16, 15)),
    "volumes": (lambda x: F.max_pool3d(x, 4, 2, 1), (1, 2, 7, 8, 9)),
    "a long line": (lambda x: F.max_pool2d(x, (1, 31), (1, 7), (0, 9), (1, 2)), (2, 3, 2, 95)),
    "averages": (lambda x: F.avg_pool2d(x, (6, 5), 2, (1, 2)), (2, 3, 17, 12)),
    "inside alone": (lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), (1, 2, 7, 6, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LARGE)
def test_large_windows(name, dtype):
    pool, shape = LARGE[name]
    x = torch.randn(shape, dtype=dtype)
    traced = make_fx(lambda x: [pool(x)])(x.to("meta"))
    graph = lower(Captured(traced, "test", "inference"), Options()).graph
    assert {type(n) for n in graph.nodes} == {Comp}
    (found,) = run_graph(graph, [x], exact=False)
    exact, eps = pool(x.double()), torch.finfo(dtype).eps
    maxima = name not in ("averages", "inside alone")
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=0 if maxima else 4 * eps)
