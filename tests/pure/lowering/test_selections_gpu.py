"""Rows in order as they are on a GPU: a scan of integers, by its meaning."""

from __future__ import annotations

import pytest
import torch
from lowered import comps, externs, lowered

import selection_cases
from torchweld.capture.lowering import selections
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Scan


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(selections, "_apart", selections._with_all)


@pytest.mark.parametrize("dtype", selection_cases.FLOATS + selection_cases.INTEGERS, ids=str)
@pytest.mark.parametrize("d", [-1, 0, 1])
@pytest.mark.parametrize("descending", [False, True])
def test_they_are_those_of_a_stable_sort(dtype, d, descending):
    x = selection_cases.rows(dtype)

    def program(x):
        return torch.sort(x, dim=d, descending=descending, stable=True)

    found = lowered(program, x)
    (comp,) = comps(found)
    assert not externs(found)
    assert [i.monoid for i in comp.body if isinstance(i, Scan)] == ["sort"]
    values, places = run_graph(found.graph, [x])
    wanted, there = program(x)
    assert torch.equal(places, there)
    torch.testing.assert_close(values.to(dtype), wanted, rtol=0, atol=0, equal_nan=True)
    zeros = wanted == 0
    assert torch.equal(values[zeros].signbit(), wanted[zeros].signbit())
