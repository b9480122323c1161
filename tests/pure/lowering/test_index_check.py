"""Which checks of indices lowering writes, and that they stand in nobody's way."""

from __future__ import annotations

import pytest
import torch
from lowered import check, lowered
from torch._subclasses import FakeTensorMode

from torchweld.capture.lowering.build import GraphBuilder
from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.ranges import check_range
from torchweld.core import dtypes
from torchweld.core.errors import IndexOutOfRange
from torchweld.core.options import Options
from torchweld.ir import views
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.targets.find import target_of

X = torch.randn(5, 7)
I = torch.tensor([4, 0, 2])


def checks(function, *args, **how) -> list[Extern]:
    nodes = lowered(function, *args, **how).graph.nodes
    return [n for n in nodes if isinstance(n, Extern) and n.target == CHECK_INDEX]


def test_bounds_of_each_operation():
    assert [n.args[1:] for n in checks(lambda x, i: x[i], X, I)] == [(-5, 5)]
    assert [n.args[1:] for n in checks(lambda x, i: x.index_select(1, i), X, I)] == [(0, 7)]


def test_equal_checks_are_one():
    def both(x, i):
        return x[i], (x + 1)[i], x.index_select(0, i), x.sin().index_select(0, i)

    assert [n.args[1:] for n in checks(both, X, I)] == [(-5, 5), (0, 5)]


def test_repeated_indices_are_read_once():
    def wide(x, i):
        return x.gather(0, i[:, None].expand(3, 7))

    graph = lowered(wide, X, I).graph
    assert [a.extent for a in graph.nodes[0].axes] == [3]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[torch.arange(5)],
        lambda x: x[torch.arange(4, -1, -1)],
        lambda x: x.index_select(1, torch.arange(6)[::2]),
        lambda x: x.gather(0, torch.full((2, 7), 4)),
        lambda x: x[x.argmax(0)],
        lambda x: x[0][x.topk(3, 1)[1]],
        lambda x: x[0][x.kthvalue(3, 1)[1]],
        lambda x: x[(x * 100).long().clamp(-5, 4)],
        lambda x: x.index_select(0, (x[0] * 9).long() % 3 + 2),
        lambda x: x.index_select(0, torch.where(x[0] > 0, 3, 1)),
    ],
)
def test_what_is_in_range_by_its_making_is_not_checked(function):
    assert checks(function, X) == []
    check(function, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.gather(0, x.sort(0)[1]),
        lambda x: x[torch.sort(x[:, 0], stable=True, descending=True)[1]],
        lambda x: x[0][x.sort(stable=True, dim=1)[1]],
        lambda x: x.gather(1, x.cummax(1)[1]),
    ],
)
def test_places_that_calls_find_are_not_checked(function):
    assert checks(function, X) == []
    check(function, X, all_lowered=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[(x * 100).long().clamp(0, 5)],
        lambda x: x[(x * 100).long().clamp(min=0)],
        lambda x: x[(x * 100).long() % 6],
        lambda x: x[x.argmax(0) + 1],
        lambda x: x[x.sort(1)[1]],
        lambda x: x[(x * 100).int().abs()],
    ],
)
def test_what_may_leave_the_range_is_checked(function):
    assert len(checks(function, X)) == 1


def test_a_progression_that_leaves_the_range_is_checked():
    result = lowered(lambda x: x.index_select(0, torch.arange(6)), torch.randn(5, 2))
    with pytest.raises(IndexOutOfRange):
        run_graph(result.graph, [torch.randn(5, 2)])


def test_numbers_that_count_are_read_at_computed_places():
    """They were an index of an index, of which no bounds can be told: the graph ran in eager."""

    def groups(x, sizes):
        numbers = torch.repeat_interleave(torch.arange(3), sizes, output_size=5)
        return x.new_zeros(3, 7).index_add(0, numbers, x, alpha=0.5)

    check(groups, X, torch.tensor([2, 0, 3]), all_lowered=False)
    assert [n.args[1:] for n in checks(groups, X, torch.tensor([2, 0, 3]))][-1] == (0, 3)
    check(lambda i: torch.arange(3, 40, 5)[i] * 2, I)


def test_a_single_index_is_checked():
    def select(x, i):
        return x.index_select(0, i)

    assert [n.args[1:] for n in checks(select, X, torch.tensor(2))] == [(0, 5)]
    check(select, X, torch.tensor(2))


@pytest.mark.parametrize(
    ("device", "of_index", "nodes", "guarded"),
    [("cpu", "cpu", 2, False), ("cuda:0", "cuda:0", 2, True), ("cuda:0", "cpu", 0, True)],
)
def test_a_gpu_checks_indices_of_its_own_and_guards_accesses(device, of_index, nodes, guarded):
    with FakeTensorMode():
        result = torch.empty(3, 7, device=device)
    graph = GraphBuilder()
    index = views.whole(graph.buffer("i", (3,), dtypes.i64, (1,), of_index))
    call = Call(graph, "index", result, frozenset((0,)))
    assert check_range(call, index, 5) == guarded
    assert len(graph.nodes) == nodes


def test_a_check_stays_and_what_is_around_fuses():
    def model(x, i):
        return torch.nn.functional.embedding(i, x.sin()).softmax(-1)

    graph = rewrite(lowered(model, X, I).graph)
    nodes = plan(graph, target_of("cpu"), Options()).graph.nodes
    assert [n.target for n in nodes if isinstance(n, Extern)] == [CHECK_INDEX]
    assert len([n for n in nodes if isinstance(n, Comp)]) == 2  # the flag, and everything else
