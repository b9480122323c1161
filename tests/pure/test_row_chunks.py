"""Large results some rows at a time: graph in, graph out, and the same meaning."""

from __future__ import annotations

from math import prod

import pytest
import torch
import torch.nn.functional as F
from products.nets import captured, on

from torchweld.core.options import Options
from torchweld.ir import row_price
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern
from torchweld.ir.row_map import NotByRows, leading_steps, spans
from torchweld.ir.row_sums import ADD, BEGIN
from torchweld.passes.row_chunks import row_chunks
from torchweld.plan.decisions import Plan
from torchweld.plan.refusals import Reason
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.targets.find import target_of
from torchweld.templates.generate import kernels_of

CPU = target_of("cpu")
ROWS, DEPTH, CLASSES = 96, 8, 320


@pytest.fixture(autouse=True)
def anything_pays(monkeypatch):
    monkeypatch.setattr(row_price, "_SHARE", 0.0)
    monkeypatch.setattr(row_price, "_LEAST_SAVED", 0)
    monkeypatch.setattr(row_price, "_MOST_EXTRA", 1e9)
    monkeypatch.setattr(row_price, "_FEWEST_ROWS", 24)


def planned(function, *args, mode: str = "fake") -> tuple[Plan, Plan]:
    graph = rewrite(on(captured(function, *args, mode=mode), "cpu"))
    before = plan(graph, CPU, Options())
    after = row_chunks(before, CPU)
    check_graph(after.graph)
    return before, after


def matrices(rows: int = ROWS):
    return torch.randn(rows, DEPTH), torch.randn(CLASSES, DEPTH)


def same(before: Plan, after: Plan, args) -> None:
    for one, other in zip(run_graph(before.graph, args), run_graph(after.graph, args)):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-13, equal_nan=True)


def largest(made: Plan) -> int:
    return max(prod(b.shape) for b in made.graph.buffers.values())


def refusals(made: Plan) -> set[Reason]:
    return {d.reason for d in made.refusals}


def gradients(x, weight, labels):
    """Cross-entropy and its gradients, by hand."""
    logits = x @ weight.T
    log_p = F.log_softmax(logits, -1)
    loss = -log_p.gather(1, labels[:, None]).mean()
    hit = labels[:, None] == torch.arange(CLASSES)
    g = (log_p.exp() - hit.to(log_p.dtype)) / len(x)
    return loss, g @ weight, g.T @ x, g.sum(0)


@pytest.mark.parametrize("rows", [96, 100, 97])
def test_logits_and_their_gradient(rows):
    args = (*matrices(rows), torch.randint(0, CLASSES, (rows,)))
    before, after = planned(gradients, *args)
    same(before, after, args)
    assert largest(after) < rows * CLASSES
    targets = [n.target for n in after.graph.nodes if isinstance(n, Extern)]
    assert targets.count(BEGIN) == 1 and targets.count(ADD) >= 1


def test_equal_chunks_are_one_kernel():
    args = (*matrices(), torch.randint(0, CLASSES, (ROWS,)))
    _, after = planned(gradients, *args)
    chunks = sum(isinstance(n, Extern) and n.target in (BEGIN, ADD) for n in after.graph.nodes)
    used = [k for k in kernels_of(after.graph, CPU) if k.uses[0][0].endswith("_rows_0")]
    assert used and all(len(k.uses) == chunks for k in used)


def test_rows_in_two_dimensions():
    def net(x, weight, labels):
        logits = (x.view(-1, DEPTH) @ weight.T).view(3, 32, CLASSES)[:, :-1]
        return -F.log_softmax(logits, -1).gather(-1, labels[:, 1:, None]).sum(), logits.amax(-1)

    args = (torch.randn(3, 32, DEPTH), matrices()[1], torch.randint(0, CLASSES, (3, 32)))
    before, after = planned(net, *args)
    same(before, after, args)
    assert largest(after) < ROWS * CLASSES


def test_two_products_side_by_side():
    def net(x, weight, other):
        p, q = F.log_softmax(x @ weight.T, -1), F.log_softmax(x @ other.T, -1)
        return (q.exp() * (q - p)).sum()

    args = (*matrices(), matrices()[1])
    before, after = planned(net, *args)
    same(before, after, args)
    assert largest(after) < ROWS * CLASSES


def test_a_maximum_over_all_rows():
    def net(x, weight):
        logits = x @ weight.T
        return logits.amax(0), logits.sum(-1).amax()

    args = matrices()
    before, after = planned(net, *args)
    same(before, after, args)
    assert largest(after) < ROWS * CLASSES


@pytest.mark.parametrize(
    "net",
    [
        lambda x, w: (x @ w.T) / (x @ w.T).sum(),
        lambda x, w: torch.softmax(x @ w.T, 0).sum(1),
        lambda x, w: (x @ w.T).cumsum(0).sum(1),
        lambda x, w: ((x @ w.T)[1:] - (x @ w.T)[:-1]).sum(1),
        lambda x, w: (x @ w.T).argmax(0),
        lambda x, w: (x @ w.T).exp(),
    ],
    ids=["total", "columns", "prefix", "neighbours", "argmax", "returned"],
)
def test_what_needs_all_rows_is_refused(net):
    before, after = planned(net, *matrices())
    assert after.graph == before.graph


def test_sizes_known_at_the_call_are_refused():
    x, weight = matrices()
    _, after = planned(lambda x, w: (x @ w.T).logsumexp(1), x, weight, mode="symbolic")
    assert Reason.ALL_ROWS in refusals(after)


def test_small_results_are_left(monkeypatch):
    monkeypatch.setattr(row_price, "_LEAST_SAVED", 8 << 20)
    before, after = planned(lambda x, w: (x @ w.T).logsumexp(1), *matrices())
    assert after.graph == before.graph
    assert Reason.SMALL_ROWS in refusals(after)


def test_a_write_in_place_among_the_nodes_is_refused():
    def net(x, weight, state):
        logits = x @ weight.T
        top = logits.amax(1)
        state.copy_(top)
        return (logits - top[:, None]).exp().sum(1)

    before, after = planned(net, *matrices(), torch.zeros(ROWS))
    same(before, after, [*matrices(), torch.zeros(ROWS)])


def test_boxes_of_rows():
    assert leading_steps((4, 32, 7)) == (32, 1, 0)
    assert spans([(32, 4), (1, 31)], 32, 96) == [(1, 2), (0, 31)]
    assert spans([(32, 4), (1, 31)], 48, 64) == [(1, 1), (16, 15)]
    with pytest.raises(NotByRows):
        spans([(32, 4), (1, 32)], 16, 48)


def test_comps_read_their_own_rows_only():
    args = (*matrices(), torch.randint(0, CLASSES, (ROWS,)))
    _, after = planned(gradients, *args)
    comps = [n for n in after.graph.nodes if isinstance(n, Comp) and "_rows_" in n.name]
    assert comps
    for comp in comps:
        assert all(a.extent in (24, CLASSES) for a in comp.axes)

