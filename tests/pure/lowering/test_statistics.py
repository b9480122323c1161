"""Norms over many pixels, their statistics apart from their application: the same numbers, and
fewer passes over memory where something else follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Reduce
from torchweld.layout.channels import channels_last
from torchweld.passes.biases import separate_biases
from torchweld.passes.statistics import statistics_apart
from torchweld.plan.search import plan
from torchweld.targets.find import named_target

TABLE = replace(named_target("H100"), max_columns=32, row_bytes=128)


def images(groups: int, after=torch.tanh):
    def run(x, w, b):
        y = F.conv2d(x, w, b)
        return after(F.group_norm(y, groups, b, w[:, 0, 0, 0], 1e-3))

    return run


def case(dtype=torch.float32, channels=8, batch=2):
    torch.manual_seed(0)
    x = torch.randn(batch, 8, 7, 9, dtype=dtype) + 5
    return x, torch.randn(channels, 8, 3, 3, dtype=dtype), torch.randn(channels, dtype=dtype)


def apart(function, args, last: bool):
    graph = lower(capture(function, *args), Options()).graph
    graph = channels_last(graph, TABLE) if last else graph
    before = separate_biases(graph, named_target("H100"))
    after = statistics_apart(before, TABLE)
    check_graph(after)
    return before, after


def norms(graph) -> list[Comp]:
    comps = [n for n in graph.nodes if isinstance(n, Comp)]
    return [c for c in comps if any(isinstance(i, Reduce) for i in c.body)]


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_same_numbers(groups, last, batch):
    args = case(torch.bfloat16, batch=batch)
    before, after = apart(images(groups), args, last)
    assert len(norms(before)) == 1 and after is not before
    inputs = [a.float() for a in args]
    for one, other in zip(run_graph(before, inputs), run_graph(after, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("last,groups,number", [
    (False, 2, 1), (True, 2, 2), (True, 8, 1),
], ids=["nchw", "groups of channels innermost", "single channels"])  # fmt: skip
def test_groups_of_channels_innermost_are_merged_from_channels(last, groups, number):
    _, after = apart(images(groups), case(torch.bfloat16), last)
    assert len(norms(after)) == number


def test_the_application_joins_another_reduction():
    def function(x, w, b):
        y = F.conv2d(x, w, b)
        return torch.logsumexp(y + F.group_norm(y, 2, b, b).tanh(), 1)

    _, w, b = case()
    args = torch.randn(16, 8, 130, 130), w, b
    h100 = named_target("H100")
    graph = separate_biases(lower(capture(function, *args), Options()).graph, named_target("H100"))
    made = plan(statistics_apart(graph, h100), h100, Options()).graph.nodes
    assert [len(n.stores) for n in made if isinstance(n, Comp)] == [2, 1]


def test_what_stays_on_chip_stays_one():
    args = case()
    graph = lower(capture(images(2), *args), Options()).graph
    after = statistics_apart(graph, named_target("H100"))
    assert after.nodes == graph.nodes

