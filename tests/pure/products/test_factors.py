"""Sums of products are contracted: the numbers of torch, and no memory for what is summed."""

from __future__ import annotations

import pytest
import torch

from torchweld.core import dtypes
from torchweld.ir import interpret
from torchweld.ir.factors import Factors, deferred
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp

MATMUL = """
  %0 = load x[b, m, k] : bf16
  %1 = cast %0 : f32
  %2 = load w[b, n, k] : bf16
  %3 = cast %2 : f32
  %4 = mul %1 %3 : f32
  %5 = reduce.sum[k] %4 : f32
  %6 = cast %5 : bf16
  store y[b, m, n] %6"""


def comp(body: str, **axes):
    extents = ", ".join(f"{a}:{n}" for a, n in axes.items())
    return parse_comp(f"comp c [{extents}] {{\n{body}\n}}")


def layout(name, *shape, dtype="bf16"):
    strides = torch.empty(shape, device="meta").stride()
    return Buffer(name, shape, dtypes.BY_NAME[dtype], tuple(strides))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("b, m, n, k", [
    (1, 7, 5, 13), (3, 7, 5, 13), (3, 1, 5, 13), (3, 7, 1, 13), (3, 7, 5, 1), (3, 7, 5, 0),
    (0, 7, 5, 13), (1, 1, 1, 1), (2, 33, 65, 127),
])  # fmt: skip
def test_products_of_any_size(b, m, n, k, exact):
    x, w = torch.randn(b, m, k).bfloat16(), torch.randn(b, n, k).bfloat16()
    made = comp(MATMUL, b=b, m=m, n=n, k=k)
    y = run_comp(made, {"x": x, "w": w}, {"y": layout("y", b, m, n)}, {}, exact)["y"]
    wide = torch.float64 if exact else torch.float32
    expected = x.to(wide) @ w.to(wide).mT
    tolerance = dict(rtol=1e-12, atol=1e-12) if exact else dict(rtol=2**-7, atol=2**-9)
    torch.testing.assert_close(y, expected if exact else expected.bfloat16(), **tolerance)


def test_strides_and_nan():
    x = torch.randn(3, 13, 7).bfloat16().mT
    w = torch.randn(3, 5, 26).bfloat16()[..., ::2]
    x[1, 2, 3] = torch.nan
    made = comp(MATMUL, b=3, m=7, n=5, k=13)
    y = run_comp(made, {"x": x, "w": w}, {"y": layout("y", 3, 7, 5)}, {})["y"]
    expected = (x.float() @ w.float().mT).bfloat16()
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=2**-9, equal_nan=True)
    assert y[1, 2].isnan().all() and y.isnan().sum() == 5


def test_nothing_is_multiplied_out(monkeypatch):
    """4096 rows, columns and depth would be 256 GiB of products."""
    seen = []
    summed = Factors.summed
    monkeypatch.setattr(Factors, "summed", lambda *a: seen.append(a) or summed(*a))
    monkeypatch.setattr(interpret, "PIECE_ELEMENTS", 64)
    x, w = torch.ones(1, 32, 4096).bfloat16(), torch.ones(1, 16, 4096).bfloat16()
    made = comp(MATMUL, b=1, m=32, n=16, k=4096)
    y = run_comp(made, {"x": x, "w": w}, {"y": layout("y", 1, 32, 16)}, {})["y"]
    assert y.eq(4096).all() and len(seen) == 1


@pytest.mark.parametrize("body, found", [
    (MATMUL, {4}),
    (MATMUL.replace("sum", "max"), set()),  # no sum
    (MATMUL.replace("cast %5", "cast %4").replace("y[b, m, n]", "y[b, m, n, k]"), set()),  # read
    (MATMUL.replace("w[b, n, k]", "w[b, m, k]").replace("y[b, m, n]", "y[b, m]"), set()),  # norms
])  # fmt: skip
def test_which_products_are_contracted(body, found):
    assert deferred(comp(body, b=2, m=3, n=5, k=7)) == found


def test_a_reduced_axis_that_neither_factor_varies_along_counts_each_point():
    body = """
  %0 = load x[m] : f32
  %1 = load w[n] : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[k] %2 : f32
  store y[m, n] %3"""
    x, w = torch.randn(3), torch.randn(5)
    made = comp(body, m=3, n=5, k=7)
    y = run_comp(made, {"x": x, "w": w}, {"y": layout("y", 3, 5, dtype="f32")}, {})["y"]
    torch.testing.assert_close(y, 7 * x[:, None] * w)
