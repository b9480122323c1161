"""Indices out of range on a GPU: floats read by them are NaN, nothing is written by them, and the
next call raises, with and without CUDA graphs."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.core.errors import IndexOutOfRange
from torchweld.runtime.index_flags import raise_if_any_set

ROWS = 10


@pytest.fixture(autouse=True, params=[True, False], ids=["graphs", "no graphs"])
def graphs(request):
    torch.compiler.reset()
    torch.manual_seed(0)
    yield request.param
    torch.cuda.synchronize()
    with suppress(IndexOutOfRange):
        raise_if_any_set()  # the next test starts with clear flags


def fuse(model, graphs: bool):
    return torchweld.fuse(model, cuda_graphs=graphs)


def data(*index: int):
    x, y = torch.randn(ROWS, 7, device="cuda"), torch.randn(6, ROWS, device="cuda")
    return x, y, torch.tensor(index, device="cuda")


def wide(i):
    return i[None].expand(6, -1)


# x [ROWS, 7], y [6, ROWS], i [n]
READS = {
    "embedding": lambda x, y, i: F.embedding(i, x).sin(),
    "gather": lambda x, y, i: y.gather(1, wide(i)).sin(),
    "index_select": lambda x, y, i: x.index_select(0, i).sin(),
    "index": lambda x, y, i: x[i].sin(),
    "index of a later dimension": lambda x, y, i: y[:, i].sin().t(),
    "losses": lambda x, y, i: F.cross_entropy(y[: i.shape[0]], i, reduction="none"),
}
WRITES = {
    "scatter": lambda x, y, i: y.scatter(1, wide(i), 2.0) * 2,
    "scatter_reduce": lambda x, y, i: (
        (9 * y).long().scatter_reduce(1, wide(i), (9 * y[:, : i.shape[0]]).long() + 5, "amax")
    ),
    "index_put": lambda x, y, i: x.index_put((i,), x[0, 0]) * 2,
    "counts": lambda x, y, i: torch.zeros(ROWS, device="cuda", dtype=torch.int64).index_add(
        0, i, torch.ones_like(i)
    ),
}


def assert_told_once(call, good: tuple, wanted) -> None:
    torch.cuda.synchronize()
    with pytest.raises(IndexOutOfRange, match="in an earlier call"):
        call(*good)
    torch.testing.assert_close(call(*good), wanted(*good))


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("bad", [ROWS, 2**40, -ROWS - 1])
def test_what_is_read_is_nan_and_the_next_call_raises(name, bad, graphs):
    fused = fuse(READS[name], graphs)
    good = data(1, 4, 9)
    for _ in range(4):  # the later ones replay
        torch.testing.assert_close(fused(*good), READS[name](*good))
    x, y, i = data(1, bad, 9)
    found, kept = fused(x, y, i), READS[name](x, y, i.clamp(0, ROWS - 1))
    is_bad = found.isnan() if name != "gather" else found.isnan().t()
    assert is_bad[1].all() and not is_bad[0].any() and not is_bad[2].any()
    torch.testing.assert_close(found[~found.isnan()], kept[~found.isnan()])
    assert_told_once(fused, good, READS[name])


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("bad", [ROWS, -ROWS - 1])
def test_nothing_is_written_and_the_next_call_raises(name, bad, graphs):
    fused = fuse(WRITES[name], graphs)
    good = data(1, 4, 9)
    for _ in range(4):
        torch.testing.assert_close(fused(*good), WRITES[name](*good))
    x, y, i = data(4, 1, bad)
    torch.testing.assert_close(fused(x, y, i), WRITES[name](x, y, i[:2]))
    assert_told_once(fused, good, WRITES[name])


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(ROWS, 64), nn.LayerNorm(64)

    def forward(self, i):
        return self.norm(self.table(i)).square().mean()


def test_training_writes_to_no_other_memory(graphs):
    model = Tokens().cuda()
    fused = fuse(model, graphs)
    good, bad = (torch.tensor(v, device="cuda") for v in ([[0, 9, 3]], [[0, ROWS, 3]]))
    for _ in range(5):
        fused(good).backward()
    around = torch.zeros(1 << 20, device="cuda")  # memory that follows small tensors, perhaps
    loss = fused(bad)
    loss.backward()
    assert loss.isnan() and not around.any()
    with pytest.raises(IndexOutOfRange, match=r"embedding.*table"):
        fused(good)
    model.zero_grad()
    fused(good).backward()
    assert model.table.weight.grad.isfinite().all()


def test_verify_tells(graphs):
    model = Tokens().cuda().eval()
    fused = fuse(model, graphs)
    bad = torch.tensor([[0, ROWS, 3]], device="cuda")
    with torch.no_grad():
        fused(bad)
        with pytest.raises(IndexOutOfRange):
            torchweld.verify(model, fused, bad.clamp(0, ROWS - 1))


def test_a_call_in_range_leaves_no_flag(graphs):
    model = Tokens().cuda().eval()
    fused = fuse(model, graphs)
    with torch.no_grad():
        for _ in range(4):
            fused(torch.tensor([[0, 9, 3]], device="cuda"))
    torch.cuda.synchronize()
    raise_if_any_set()
