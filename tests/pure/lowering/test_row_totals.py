"""Losses over everything that need statistics of rows: one kernel with a number for each row, then
one of these; the same numbers."""

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
from torchweld.ir.nodes import Comp, Graph
from torchweld.passes.row_totals import _Walk, totals_by_rows
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.targets.find import named_target

ROWS, COLUMNS = 12, 40
TABLE = replace(named_target("H100"), units=2)


def entropy(x):
    return -(x.softmax(-1) * x.log_softmax(-1)).sum()


def divergence(x):
    p = x.roll(1, 0).log_softmax(1)
    return F.kl_div(x.log_softmax(1), p, log_target=True, reduction="batchmean")


LOSSES = {
    "kl": divergence,
    "entropy": entropy,
    "cross entropy": lambda x: -((x - x.logsumexp(1, keepdim=True)) * x.flip(0).softmax(1)).mean(),
    "label smoothing": lambda x: -x.log_softmax(1).mean(),
    "largest": lambda x: x.softmax(1).max(),
    "smallest": lambda x: x.log_softmax(1).min(),
    "norm": lambda x: F.layer_norm(x, (COLUMNS,)).abs().sum(),
    "flattened": lambda x: x.softmax(1).view(-1).square().sum(),
    "other axis": lambda x: (x.t().softmax(0) * 2).square().sum(),
}


def graph_of(function, x, mode: str = "fake") -> Graph:
    graph = lower(capture(function, x, mode=mode), Options()).graph
    return rewrite(graph)


def comps(graph: Graph) -> list[Comp]:
    return [n for n in graph.nodes if isinstance(n, Comp)]


def values(rows: int = ROWS) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(rows, COLUMNS) * 3


@pytest.mark.parametrize("name", LOSSES)
def test_one_kernel_writes_a_number_for_each_row(name):
    x = values()
    graph = totals_by_rows(graph_of(LOSSES[name], x), TABLE)
    check_graph(graph)
    planned = plan(graph, TABLE, Options()).graph
    of_rows, of_all = comps(planned)
    assert [planned.buffers[b].shape for b in of_rows.writes] == [(ROWS,)]
    assert of_all.reads == of_rows.writes
    (result,) = run_graph(planned, [x])
    torch.testing.assert_close(result.double(), LOSSES[name](x.double()), rtol=1e-5, atol=1e-6)


def test_rows_of_samples():
    x = values(24).view(4, 6, COLUMNS)
    graph = graph_of(lambda x: (x.softmax(-1) * x.log_softmax(-1)).sum((1, 2)), x)
    planned = plan(totals_by_rows(graph, TABLE), TABLE, Options()).graph
    assert [planned.buffers[b].shape for b in comps(planned)[0].writes] == [(4, 6)]
    (result,) = run_graph(planned, [x])
    exact = (x.double().softmax(-1) * x.double().log_softmax(-1)).sum((1, 2))
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


def test_sizes_of_the_call():
    x = values()
    graph = totals_by_rows(graph_of(entropy, x, mode="symbolic"), TABLE)
    check_graph(graph)
    for rows in (ROWS, 3):
        (result,) = run_graph(graph, [values(rows)])
        exact = entropy(values(rows).double())
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-6)
    assert any(c.name.endswith("_rows") for c in comps(graph))


STAY = {
    "no statistics": lambda x: (x * x).sum(),
    "of columns": lambda x: (x - x.sum()).square().sum(),
    "a row's result": lambda x: x.logsumexp(1).sum(),
    "a norm of everything": lambda x: x.softmax(1).view(-1).softmax(0),
    "a product": lambda x: x.softmax(1).prod(),
}


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name):
    graph = graph_of(STAY[name], values())
    assert totals_by_rows(graph, TABLE) == graph


def test_few_or_short_rows_stay():
    few, short = graph_of(entropy, values(7)), graph_of(entropy, values()[:, :31])
    for graph in (few, short):
        assert totals_by_rows(graph, TABLE) == graph


def test_steps_of_stencils_are_not_followed_one_by_one():
    """After k of them, an element is made of all within k steps: 4 * k * k places of each image."""

    def steps(x):
        for _ in range(6):
            x = x + 0.1 * (x.roll(1, 0) - x.roll(-1, 0)) * (x.roll(1, 1) - x.roll(-1, 1))
        return x.square().sum()

    x = torch.empty(ROWS, COLUMNS)
    graph = rewrite(lower(capture(steps, x), Options()).graph)
    makers = {n.writes[0]: n for n in graph.nodes}
    (total,) = (n for n in graph.nodes if graph.buffers[n.writes[0]].shape == ())
    walk = _Walk(total, makers)
    assert not list(walk.columns())
    assert len(walk.seen) <= len(graph.nodes)
