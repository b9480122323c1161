"""Reductions of a few terms that lie apart become pointwise work that means the same."""

from __future__ import annotations

import pytest
import torch
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Load, Reduce
from torchweld.passes.few_terms import few_terms_written_out
from torchweld.plan.search import plan
from torchweld.targets.find import named_target

IMAGE = (2, 3, 5, 7)


def branches(x, y, p):
    """As selective kernels have them: stacked, weighed, summed."""
    both = torch.stack([x.relu(), y.sigmoid()], dim=1)
    return (both * p).sum(1)


def branches_with_a_channel_each(x, y, p):
    return torch.cat([x, y], 1).reshape(2, 2, 3, 5, 7).amax(1) + p[:, 0]


def log_sum(x, y, p):
    return torch.logsumexp(torch.stack([x, y], 1), 1)


def products_of_depth_three(x, y, p):
    return (x.reshape(2, 3, 35, 1) * y.reshape(2, 3, 1, 35)).sum(1)


def sums_of_neighbours(x, y, p):
    return x.reshape(2, 3, 7, 5).sum(-1)


def long_sums(x, y, p):
    return torch.stack([x, y, x, y, x, y, x, y, x + y], 1).prod(1)


def written_out(function):
    torch.manual_seed(0)
    args = (torch.randn(IMAGE), torch.randn(IMAGE), torch.randn(2, 2, 3, 1, 1))
    lowered = lower(capture(function, *args), Options()).graph
    before = plan(lowered, named_target("H100"), Options()).graph
    after = few_terms_written_out(before)
    check_graph(after)
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    return after


def instructions(graph, kind) -> int:
    comps = (n for n in graph.nodes if isinstance(n, Comp))
    return sum(isinstance(i, kind) for comp in comps for i in comp.body)


@pytest.mark.parametrize(
    ("function", "loads"), [(branches, 4), (branches_with_a_channel_each, 3), (log_sum, 2)]
)
def test_no_reduction_is_left(function, loads):
    """And nothing is chosen between: each branch is read once."""
    graph = written_out(function)
    assert instructions(graph, Reduce) == 0
    assert instructions(graph, Load) == loads


@pytest.mark.parametrize("function", [products_of_depth_three, sums_of_neighbours, long_sums])
def test_what_is_left(function):
    assert instructions(written_out(function), Reduce) == 1
