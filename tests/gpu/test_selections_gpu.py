"""The first elements of rows in order, on a GPU."""

from __future__ import annotations

import pytest
import torch

import torchweld
from selection_cases import FLOATS, INTEGERS, check, check_all, routed


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("d", [-1, 0, 1])
def test_they_are_those_of_eager(dtype, d):
    check_all(dtype, d, "cuda")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows, columns, k", [(999, 64, 8), (77, 1000, 17), (5, 4096, 32)])
def test_larger_rows(rows, columns, k, dtype):
    torch.manual_seed(0)
    check(lambda x: x.topk(k, -1), torch.randn(rows, columns, device="cuda").to(dtype), -1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_of_equals_the_same_are_taken(dtype, largest):
    """In another order."""
    torch.manual_seed(0)
    torch.compiler.reset()
    x = (torch.randn(500, 64, device="cuda") * 20).to(dtype)
    found = torchweld.fuse(lambda x: x.topk(8, -1, largest)[1])(x)
    assert torch.equal(found.sort(-1).values, x.topk(8, -1, largest)[1].sort(-1).values)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows, columns", [(999, 64), (77, 211), (5, 512), (3, 513), (7, 2)])
def test_sorted_rows(rows, columns, dtype):
    torch.manual_seed(0)
    x = torch.randn(rows, columns, device="cuda").to(dtype)
    check(lambda x: torch.sort(x, dim=-1, stable=True), x, -1, stable=True)


def test_experts_of_tokens():
    torch.manual_seed(0)
    torch.compiler.reset()
    x, w = torch.randn(999, 256, device="cuda"), torch.randn(256, 64, device="cuda") / 16
    with torch.no_grad():
        found = torchweld.fuse(lambda x, w: routed(x, w, 8))(x, w)
    for a, b in zip(found, routed(x, w, 8)):
        torch.testing.assert_close(a, b)
