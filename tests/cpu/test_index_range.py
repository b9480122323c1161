"""Indices out of range raise, as in eager, wherever a lowered operation reads or writes by them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.core.errors import IndexOutOfRange
from torchweld.core.events import TorchweldWarning

ROWS = 10
EAGER = (IndexError, RuntimeError)  # gather and scatter raise the second


@pytest.fixture(autouse=True)
def fresh(recwarn):
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    assert not [str(w.message) for w in recwarn if isinstance(w.message, TorchweldWarning)]


def _wide(i):
    return i[None].expand(6, -1)


# x [ROWS, 7], y [6, ROWS], i [n]
POSITIVE = {
    "embedding": lambda x, y, i: F.embedding(i, x).sin(),
    "embedding with a padding row": lambda x, y, i: F.embedding(i, x, padding_idx=2).sin(),
    "gather": lambda x, y, i: y.gather(1, _wide(i)).sin(),
    "index_select": lambda x, y, i: x.index_select(0, i).sin(),
    "scatter": lambda x, y, i: y.scatter(1, _wide(i), 2.0) * 2,
    "scatter_add": lambda x, y, i: y.scatter_add(1, _wide(i), y[:, : i.shape[0]]) * 2,
    "scatter_reduce": lambda x, y, i: y.scatter_reduce(1, _wide(i), y[:, : i.shape[0]], "amax"),
    "index_add": lambda x, y, i: x.index_add(0, i, x[: i.shape[0]]) * 2,
    "cross_entropy": lambda x, y, i: F.cross_entropy(y[: i.shape[0]], i),
    "nll_loss of images": lambda x, y, i: F.nll_loss(y.t()[None, :, : i.shape[0]], i[None]),
}
WRAPPED = {
    "index": lambda x, y, i: x[i].sin(),
    "index of a later dimension": lambda x, y, i: y[:, i].sin(),
    "index by two": lambda x, y, i: y[i.clamp(-6, 5), i].sin(),
    "index_put": lambda x, y, i: x.index_put((i,), x[: i.shape[0]], accumulate=True) * 2,
}
CASES = [(name, ROWS) for name in POSITIVE | WRAPPED]
CASES += [(name, -1) for name in POSITIVE] + [(name, -ROWS - 1) for name in WRAPPED]


def _data(*index: int):
    return torch.randn(ROWS, 7), torch.randn(6, ROWS), torch.tensor(index)


@pytest.mark.parametrize(("name", "bad"), CASES)
def test_an_index_out_of_range_raises_and_the_next_call_is_right(name, bad):
    function = (POSITIVE | WRAPPED)[name]
    fused = torchweld.fuse(function)
    for outside in (bad, bad):  # the first call, and one after it
        x, y, i = _data(1, 4, outside)
        with pytest.raises(EAGER):
            function(x, y, i)
        with pytest.raises(IndexOutOfRange, match="outside") as caught:
            fused(x, y, i)
        assert "test_index_range.py" in caught.value.where
        lowest = -ROWS if name in WRAPPED else 0
        inside = (1, ROWS - 1, lowest)
        x, y, i = _data(*inside)
        torch.testing.assert_close(fused(x, y, i), function(x, y, i))


@pytest.mark.parametrize("name", ["embedding", "gather", "index", "cross_entropy", "scatter_add"])
def test_with_symbolic_sizes(name):
    function = (POSITIVE | WRAPPED)[name]
    fused = torchweld.fuse(function, dynamic=True)
    for index in ((1, 4, 9), (0, 3), (2, 5, 7, 1)):
        x, y, i = _data(*index)
        torch.testing.assert_close(fused(x, y, i), function(x, y, i))
        x, y, i = _data(*index, ROWS)
        with pytest.raises(IndexOutOfRange):
            fused(x, y, i)


def test_the_extent_is_that_of_the_call():
    fused = torchweld.fuse(lambda x, i: x[i].sin(), dynamic=True)
    for rows in (5, 9, 12):
        fused(torch.randn(rows, 3), torch.tensor([0, rows - 1, -rows]))
        for bad in (rows, -rows - 1):
            with pytest.raises(IndexOutOfRange, match=rf"\[-{rows}, {rows}\)"):
                fused(torch.randn(rows, 3), torch.tensor([0, 1, bad]))


@pytest.mark.parametrize("name", ["embedding", "gather", "index", "index_add", "cross_entropy"])
def test_in_training(name):
    function = (POSITIVE | WRAPPED)[name]
    fused = torchweld.fuse(function)
    for index in ((1, 4, ROWS), (1, 4, 9), (1, ROWS, 2), (3, 3, 0)):
        grads = []
        x, y, i = _data(*index)
        for call in (function, fused):
            leaves = [t.clone().requires_grad_() for t in (x, y)]
            if ROWS in index:
                with pytest.raises(EAGER if call is function else IndexOutOfRange):
                    call(*leaves, i)
                continue
            call(*leaves, i).sum().backward()
            grads.append([t.grad for t in leaves if t.grad is not None])
        for found, want in zip(grads[1:], grads[:1]):
            torch.testing.assert_close(found, want)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(ROWS, 8), nn.LayerNorm(8)

    def forward(self, i):
        return self.norm(self.table(i))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ahead_of_time(dtype):
    model = Tokens().eval()
    good, bad = torch.tensor([[0, 9, 3]], dtype=dtype), torch.tensor([[0, 10, 3]], dtype=dtype)
    with torch.no_grad():
        fused = torchweld.fuse(model, good)
        for _ in range(2):
            with pytest.raises(IndexOutOfRange):
                fused(bad)
            torch.testing.assert_close(fused(good), model(good))


def test_an_ignored_target_is_no_error():
    fused = torchweld.fuse(lambda x, t: F.cross_entropy(x, t, ignore_index=-100))
    x, target = torch.randn(3, ROWS), torch.tensor([1, -100, 9])
    torch.testing.assert_close(fused(x, target), F.cross_entropy(x, target))
    with pytest.raises(IndexOutOfRange):
        fused(x, torch.tensor([1, -99, 9]))


def test_a_graph_that_writes_to_its_input():
    def write(x, i):
        x.mul_(2)
        return x[i].sum()

    fused, x = torchweld.fuse(write), torch.ones(ROWS, 3)
    for bad in (ROWS, -ROWS - 1):
        with pytest.raises(IndexOutOfRange):
            fused(x, torch.tensor([1, bad]))
        x = torch.ones(ROWS, 3)
        torch.testing.assert_close(fused(x, torch.tensor([1, -2])), torch.tensor(12.0))
        torch.testing.assert_close(x, torch.full((ROWS, 3), 2.0))


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_no_index_is_never_out_of_range(shape):
    fused = torchweld.fuse(lambda x, i: F.embedding(i, x) * 2)
    i = torch.zeros(shape, dtype=torch.int64)
    assert fused(torch.randn(ROWS, 4), i).shape == (*shape, 4)
