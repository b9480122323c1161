"""Windows whose results are made several at a time: the same meaning, and fewer loads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp
from torchweld.passes import neighbours
from torchweld.passes.depthwise import depthwise_written_out
from torchweld.passes.neighbours import neighbours_together
from torchweld.plan.search import plan
from torchweld.targets.find import named_target

H100 = named_target("H100")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes that an interpreter takes."""
    monkeypatch.setattr(neighbours, "_THREADS", 0)


def together(function, *args):
    graph = lower(capture(function, *args), Options()).graph
    before = plan(depthwise_written_out(graph, H100, Options()), H100, Options()).graph
    after = neighbours_together(before, H100)
    check_graph(after)
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    return before, after


def stores(graph) -> int:
    return sum(len(n.stores) for n in graph.nodes if isinstance(n, Comp))


def image(*shape: int) -> torch.Tensor:
    """Channels innermost."""
    torch.manual_seed(0)
    order = (0, *range(2, len(shape)), 1)
    return torch.randn([shape[k] for k in order]).permute(0, -1, *range(1, len(shape) - 1))


@pytest.mark.parametrize("size", [(4, 8), (9, 7), (5, 6), (3, 2)], ids=str)
@pytest.mark.parametrize("window", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions_of_odd_images(size, window, stride):
    """Where the neighbours of the last point are beyond the image, nothing is read or written."""
    how = dict(padding=window // 2, stride=stride, groups=6)
    x, w, r = image(2, 6, *size), torch.randn(6, 1, window, window), torch.randn(6)

    def function(x, w, r):
        return F.conv2d(x.sigmoid(), w, r, **how).relu() + r[:, None, None]

    before, after = together(function, x, w, r)
    assert stride == 2 or stores(after) > stores(before)


def test_volumes_and_lines():
    together(lambda x, w: F.conv3d(x, w, padding=1, groups=4), image(1, 4, 3, 5, 6),
             torch.randn(4, 1, 3, 3, 3))  # fmt: skip
    together(lambda x, w: F.conv1d(x, w, padding=3, groups=4), image(2, 4, 11),
             torch.randn(4, 1, 7))  # fmt: skip


def test_pools_and_differences():
    together(lambda x: F.max_pool2d(x, 3, 2, 1), image(2, 8, 9, 11))
    together(lambda x: F.avg_pool2d(x, 3, 1, 1) - x, image(2, 8, 7, 7))


def test_what_is_left():
    """Pointwise work, windows that do not overlap, and images whose rows are innermost along the
    only side that a window has."""
    for function, x in [
        (lambda x: x.exp() * 2, image(2, 8, 9, 11)),
        (lambda x: F.max_pool2d(x, 3, 3), image(2, 8, 9, 12)),
        (lambda x: F.avg_pool1d(x, 7, 1, 3), torch.randn(2, 8, 30)),
    ]:
        before, after = together(function, x)
        assert before == after


def test_windows_that_store_as_much_as_they_load_stay_as_they_are():
    def weights(x, w):
        near = [x[:, i : i + 6, j : j + 5] for i in range(3) for j in range(3)]
        return [(n - near[4]) * w[:, k] for k, n in enumerate(near)]

    before, after = together(weights, torch.randn(2, 8, 7), torch.randn(2, 9, 6, 5))
    assert stores(after) == stores(before)


def test_parts_of_a_concatenation_share_nothing_and_are_not_written_out(monkeypatch):
    """Neighbours of 24 parts were written out for each axis and count, and then refused: 20 of 40 s
    of a plan of dense connections."""
    tried = []
    written_out = neighbours._written_out
    monkeypatch.setattr(
        neighbours, "_written_out", lambda *a: tried.append(a) or written_out(*a))
    parts = [torch.randn(2, 8, 8, 4) for _ in range(9)]
    before, after = together(lambda *p: torch.cat(p, -1).relu(), *parts)
    assert after == before and not tried
    image, window = torch.randn(2, 4, 8, 8), torch.randn(4, 1, 3, 3)
    together(lambda x, w: F.conv2d(x, w, padding=1, groups=4), image, window)
    assert tried
