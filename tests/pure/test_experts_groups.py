"""What capture makes of experts and of loops before they are lowered: graphs, no compiler."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture import experts, grouped, pieces, unrolled


def traced(function, *args):
    return make_fx(function, tracing_mode="fake")(*args)


def names(gm):
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


def chosen_left(table, x, ids):
    return torch.bmm(table[ids], x[:, :, None])[:, :, 0]


def chosen_right(table, x, ids):
    return torch.bmm(x[:, None], table.permute(0, 2, 1)[ids])[:, 0]


def chosen_turned(table, x, ids):
    return torch.bmm(x[:, None], table[ids].transpose(1, 2))[:, 0]


@pytest.mark.parametrize("function", [chosen_left, chosen_right, chosen_turned])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_chosen_matrices(function, rows):
    table, x = torch.randn(4, 5, 6, dtype=torch.float64), torch.randn(rows, 6, dtype=torch.float64)
    ids = torch.tensor([2, 0, 2, -1, 0, 3, 0])[:rows]
    gm = traced(function, table, x, ids)
    if not any("aten.index.Tensor" in name for name in names(gm)):
        pytest.skip("a view of the table")
    experts.by_groups(gm)
    assert not any("bmm" in name for name in names(gm))
    torch.testing.assert_close(gm(table, x, ids), function(table, x, ids))


def gradient(p, q, ids):
    outer = torch.bmm(p[:, :, None], q[:, None])
    return p.new_zeros(4, 5, 3).index_put([ids], outer, accumulate=True)


def test_gradient_of_chosen_matrices():
    p, q = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    ids = torch.tensor([2, 0, 2, -1, 0, 0, 0])  # 1 has no rows
    gm = traced(gradient, p, q, ids)
    experts.by_groups(gm)
    assert not any("bmm" in name or "index_put" in name for name in names(gm))
    torch.testing.assert_close(gm(p, q, ids), gradient(p, q, ids))


def two_columns(table, x, ids):
    return torch.bmm(table[ids], x[:, :, None].expand(-1, -1, 2).contiguous())


def not_added(table, x, ids):
    outer = torch.bmm(x[:, :5, None], x[:, None])
    return table.new_zeros(4, 5, 6).index_put([ids], outer)


@pytest.mark.parametrize("function", [two_columns, not_added])
def test_others_are_left(function):
    table, x, ids = torch.randn(4, 5, 6), torch.randn(7, 6), torch.arange(7) % 4
    gm = traced(function, table, x, ids)
    before = names(gm)
    experts.by_groups(gm)
    assert names(gm) == before


def test_groups():
    rows, matrices = torch.randn(6, 3), torch.randn(4, 3, 2)
    ends = torch.tensor([0, 2, 2, 5])
    result = grouped.grouped_mm(rows, matrices, ends)
    wanted = torch.cat((rows[:2] @ matrices[1], rows[2:5] @ matrices[3], torch.zeros(1, 2)))
    torch.testing.assert_close(result, wanted)
    outer = grouped.grouped_outer(rows, rows[:, :2], ends)
    assert outer.shape == (4, 3, 2) and not outer[[0, 2]].any()
    torch.testing.assert_close(outer[3], rows[2:5].T @ rows[2:5, :2])
    order, place, ends = grouped.group_rows(torch.tensor([1, 0, 1, -3]), 3)
    assert order.tolist() == [1, 3, 0, 2] and ends.tolist() == [2, 4, 4]
    assert order[place].tolist() == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        grouped.group_rows(torch.tensor([3]), 3)


def test_gradient_of_groups():
    rows = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    matrices = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    ends = torch.tensor([2, 2, 5])
    call = grouped.ops.grouped_mm
    for turned in (lambda m: m.transpose(1, 2), lambda m: m.transpose(1, 2).contiguous()):
        function = functools.partial(lambda turn, r, m: call(r, turn(m), ends), turned)
        assert torch.autograd.gradcheck(function, (rows, matrices))


def unrolled_loop(x, w, b, h):
    made = []
    for t in range(3):
        h = torch.tanh(F.linear(x[:, t], w, b) + h)
        made.append(h)
    return torch.stack(made, 1)


def written_loop(x, w, b, h):
    x.add_(1.0)
    return unrolled_loop(x, w, b, h)


def filled_loop(x, w, b, h):
    made = torch.zeros_like(x)
    for t in range(3):
        h = torch.tanh(F.linear(x[:, t], w, b) + h)
        made.select(1, t).copy_(h)
    return made


def part_of_a_loop(x, w, b, h):
    return F.linear(x[:, 0], w, b) + F.linear(x[:, 1], w, b)


@pytest.mark.parametrize(
    ("function", "products"),
    [(unrolled_loop, 1), (filled_loop, 1), (written_loop, 3), (part_of_a_loop, 2)],
)
def test_products_of_a_loop(function, products):
    given = [torch.randn(2, 3, 4), torch.randn(4, 4), torch.randn(4), torch.randn(2, 4)]
    gm = torch.fx.symbolic_trace(function)
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), given):
        node.meta["example_value"] = value
    unrolled.hoist_products(gm)
    assert sum(n.target is F.linear for n in gm.graph.nodes) == products
    copies = [[t.clone() for t in given] for _ in range(2)]
    torch.testing.assert_close(gm(*copies[0]), function(*copies[1]))


@pytest.mark.parametrize("cell", [torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell])
def test_cells_are_what_torch_says(cell):
    gates = {torch.lstm_cell: 4, torch.gru_cell: 3}.get(cell, 1)
    kind = torch.float64
    x, h = torch.randn(2, 5, dtype=kind), torch.randn(2, 4, dtype=kind)
    w, u = (torch.randn(4 * gates, n, dtype=kind) for n in (5, 4))
    b, d = (torch.randn(4 * gates, dtype=kind) for _ in range(2))
    state = [h, torch.randn(2, 4, dtype=kind)] if cell is torch.lstm_cell else h
    made = unrolled._CELLS[cell](F.linear(x, w, b), state, u, d)
    torch.testing.assert_close(made, cell(x, state, w, u, b, d))


def drawn(x, k):
    """Stands for an operation that draws random numbers."""


def test_levels(monkeypatch):
    """Parts of a loop whose sizes depend on data: all masks, all sizes, all experts."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    parts = []
    for k in range(3):
        mask = graph.call_function(operator.add, (x, k))
        size = graph.call_function(operator.neg, (mask,))
        parts.append((mask, size, graph.call_function(operator.mul, (x, size))))
    monkeypatch.setattr(pieces, "depends_on_data", lambda node: node.target is operator.neg)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    assert pieces.by_levels(nodes) == [part[k] for k in range(3) for part in parts]
    drawn.tags = (torch.Tag.nondeterministic_seeded,)
    parts[0][0].target = drawn
    assert pieces.by_levels(nodes) == nodes
