"""Means by index, and sums that take the place of what is there, on a GPU: sums and their numbers
of terms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lowered import check, comps, externs, lowered

from torchweld.capture import lower as lowering
from torchweld.capture.lowering import call
from torchweld.capture.lowering.call import spec_of

ROWS, COLUMNS, POINTS = 11, 5, 37


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    torch.manual_seed(0)
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))


def operands(dtype=torch.float32):
    at = torch.randint(0, ROWS - 2, (POINTS,))  # two rows get nothing
    at[3] = ROWS - 1
    return torch.randn(ROWS, COLUMNS).to(dtype), at, torch.randn(POINTS, COLUMNS).to(dtype)


def counts(result) -> list[tuple]:
    buffers = result.graph.buffers
    stores = [s for c in comps(result) for s in c.stores if s.combine == "add"]
    return [buffers[s.buffer].shape for s in stores if s.buffer.startswith("count")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_what_scatter_reduce_gives(reduce, include_self, dtype):
    def rows(x, at, v):
        every = at[:, None].expand(-1, COLUMNS)
        return x.scatter_reduce(0, every, v * 2, reduce, include_self=include_self)

    result = check(rows, *operands(dtype))
    plain = reduce == "sum" and include_self
    assert counts(result) == ([] if plain else [(ROWS, 1)])  # once for all columns


@pytest.mark.parametrize("include_self", [True, False])
def test_indices_of_each_element(include_self):
    x, _, v = operands()

    def along(d, at, x, v):
        return x.scatter_reduce(d, at, v, "mean", include_self=include_self)

    at = torch.randint(0, ROWS, (POINTS, COLUMNS))
    assert counts(check(lambda *a: along(0, *a), at, x, v)) == [(ROWS, COLUMNS)]
    at = torch.randint(0, COLUMNS, (ROWS - 3, POINTS))  # not in all rows
    assert counts(check(lambda *a: along(1, *a), at, x, v.t()[:, : POINTS].expand(5, -1)
                        .repeat(2, 1))) == [(ROWS, COLUMNS)]  # fmt: skip
    at = torch.randint(0, COLUMNS, (1, POINTS)).expand(ROWS - 3, -1)
    assert counts(check(lambda *a: along(1, *a), at, x, torch.randn(ROWS, POINTS))) == [
        (ROWS, COLUMNS)
    ]


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("d", [0, 1, -2])
def test_what_index_reduce_gives(d, include_self):
    x, at, v = operands()
    x, v = (x, v) if d != 1 else (x.t(), v.t())

    def means(x, at, v):
        return x.index_reduce(d, at, v, "mean", include_self=include_self)

    assert counts(check(means, x, at, v)) == [(ROWS, 1) if d != 1 else (1, ROWS)]


def test_16_bits_are_rounded_once():
    x, at, v = operands(torch.bfloat16)
    result = check(lambda x, at, v: x.index_reduce(0, at, v, "mean"), x, at, v)
    assert counts(result) == [(ROWS, 1)]


def test_others_stay_with_aten(monkeypatch):
    x, at, v = operands()
    for reduce in ("amax", "prod"):
        result = lowered(lambda x, at, v, r=reduce: x.index_reduce(0, at, v, r), x, at, v)
        assert externs(result) == ["aten.index_reduce.default"]
    whole = (x * 9).long(), at, (v * 9).long()
    result = lowered(lambda x, at, v: x.index_reduce(0, at, v, "mean"), *whole)
    assert externs(result) == ["aten.index_reduce.default"]
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    result = lowered(lambda x, at, v: x.index_reduce(0, at, v, "mean"), x, at, v)
    assert externs(result) == ["aten.index_reduce.default"]
