"""Products with ones at indices are reads and sums by index, NaN where products are."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture import one_hot
from torchweld.capture.one_hot import by_index
from torchweld.capture.torch_private import core_decompositions

aten = torch.ops.aten
TABLE = core_decompositions()
PRODUCTS = (aten.mm.default, aten.addmm.default)
ROWS, COLUMNS, POINTS = 53, 7, 67


def ones(at, dtype=torch.float32):
    return F.one_hot(at, ROWS).to(dtype)


def compared(at):
    return (torch.arange(ROWS) == at.unsqueeze(-1)).float()


def scattered(at):
    return torch.zeros(POINTS, ROWS).scatter(1, at.unsqueeze(1), 1.0)


def graph_of(function, *args) -> torch.fx.GraphModule:
    made = make_fx(function, TABLE, tracing_mode="fake")(*args)
    by_index(made)
    made.recompile()
    return made


def products(gm) -> int:
    return sum(len(gm.graph.find_nodes(op="call_function", target=t)) for t in PRODUCTS)


def drawn(rows: int, bad=(), dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(rows, COLUMNS)
    for row, column, value in bad:
        x[row, column] = value
    return torch.randint(0, ROWS, (POINTS,)), x.to(dtype)


def check(function, at, x, *others):
    made = graph_of(function, at, x, *others)
    assert products(made) == 0
    torch.testing.assert_close(made(at, x, *others), function(at, x, *others), equal_nan=True)


BAD = [(), ((3, 2, math.inf),), ((3, 2, math.nan), (9, 2, -math.inf), (5, 0, math.inf))]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_read(bad, dtype):
    at, w = drawn(ROWS, bad, dtype)
    at[0], at[1] = 3, 9
    check(lambda i, w: ones(i, dtype) @ w, at, w)
    check(lambda i, w: F.linear(ones(i.view(-1, 1), dtype), w.t(), w[8]), at, w)
    check(lambda i, w: ones(i, dtype) @ w, at.int().long() // 60, w)


@pytest.mark.parametrize("bad", BAD)
def test_groups_are_added_up(bad):
    at, x = drawn(POINTS, bad)
    check(lambda i, x: ones(i).t() @ x, at, x)
    at[3] = at[9] = at[5] = 4  # all that is not finite is of one group
    check(lambda i, x: ones(i).t() @ x, at, x)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("made", [compared, scattered])
def test_other_ways_to_write_ones(made, bad):
    at, w = drawn(ROWS, bad)
    at = at if made is scattered else (at - 5).int()  # some are out of range: rows of zeros
    check(lambda i, w: made(i) @ w, at, w)
    at, x = drawn(POINTS, bad)
    at = at if made is scattered else at - 5
    check(lambda i, x: made(i).t() @ x, at, x)


@pytest.mark.parametrize("function", [
    lambda i, w: (ones(i) * 2) @ w,
    lambda i, w: (torch.arange(1, ROWS + 1) == i.unsqueeze(-1)).float() @ w,
    lambda i, w: torch.ones(POINTS, ROWS).scatter(1, i.unsqueeze(1), 1.0) @ w,
    lambda i, w: torch.zeros(POINTS, ROWS).scatter(1, i.unsqueeze(1), 2.0) @ w,
    lambda i, w: torch.zeros(POINTS, ROWS).scatter(1, i.view(-1, 1).expand(-1, 2), 1.0) @ w,
    lambda i, w: (torch.arange(ROWS) == i[:ROWS]).float().expand(POINTS, -1) @ w,
    lambda i, w: ones(i) @ w.repeat(1, 20),  # the ones and zeros are few beside it
])  # fmt: skip
def test_others_stay_products(function):
    at, w = drawn(ROWS)
    assert products(graph_of(function, at, w)) == 1


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(("device", "d", "comparisons", "counted"), [
    ("cpu", 0, POINTS * 1031, True), ("cpu", -2, 0, True), ("cpu", 1, 0, False),
    ("cuda", 0, 0, False), ("cpu", 0, POINTS * 1031 + 1, False),
])  # fmt: skip
def test_histograms_of_many_places(device, d, comparisons, counted, mean, monkeypatch):
    """Counted on a GPU: here the device of the test stands for it."""
    monkeypatch.setattr(one_hot, "_COUNTED_ON", device)
    monkeypatch.setattr(one_hot, "_COMPARISONS", comparisons)

    def histogram(at):
        ones = (torch.arange(1031) == at.unsqueeze(-1)).float()
        return ones.mean(d) if mean else ones.sum(d)

    at = torch.randint(-3, 1033, (POINTS,))
    at[:9] = 1030
    made = graph_of(histogram, at)
    found = made.graph.find_nodes(op="call_function", target=aten.scatter_add.default)
    assert bool(found) == counted
    torch.testing.assert_close(made(at), histogram(at))
