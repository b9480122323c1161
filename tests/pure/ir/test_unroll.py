"""Reductions of a few terms written out: the same results, and what is left as it is."""

from __future__ import annotations

import pytest
import torch

from torchweld.core import dtypes
from torchweld.ir.check import check_comp
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Buffer, Reduce
from torchweld.ir.parser import parse_comp
from torchweld.ir.unroll import can_unroll, unrolled
from torchweld.templates.pointwise_reduce.cpu.schedule import formed

BODIES = {
    "sum of products": """
  %0 = load x[i, k, l, j] : f32
  %1 = load w[k] : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[k,l] %2 : f32
  %4 = load x[i, 0, 0, j] : f32
  %5 = add %3 %4 : f32
  store y[i, j] %5
""",
    "a sum of what a maximum is taken from": """
  %0 = load x[i, k, l, j] : f32
  %1 = reduce.max[k,l] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = reduce.prod[k,l] %2 : f32
  %4 = reduce.min[k,l] %0 : f32
  %5 = add %3 %4 : f32
  store y[i, j] %5
""",
    "the same term each time": """
  %0 = load x[i, 1, 2, j] : f32
  %1 = reduce.sum[k,l] %0 : f32
  store y[i, j] %1
""",
    "positions": """
  %0 = index 3*k+l : i64
  %1 = cast %0 : f32
  %2 = load x[i, k, l, j] : f32
  %3 = mul %1 %2 : f32
  %4 = reduce.sum[k,l] %3 : f32
  store y[i, j] %4
""",
}
LAYOUTS = {
    "x": Buffer("x", (5, 2, 3, 40), dtypes.f32, (240, 120, 40, 1), "cpu"),
    "w": Buffer("w", (2,), dtypes.f32, (1,), "cpu"),
    "y": Buffer("y", (5, 40), dtypes.f32, (40, 1), "cpu"),
}


def comp_of(body: str):
    return parse_comp(f"comp c [i:5, k:2, l:3, j:40] {{\n{body}\n}}")


@pytest.mark.parametrize("name", BODIES)
def test_what_is_written_out_means_the_same(name: str):
    comp = comp_of(BODIES[name])
    assert can_unroll(comp, ("k", "l"))
    made = unrolled(comp, ("k", "l"))
    check_comp(made, LAYOUTS)
    assert not any(isinstance(i, Reduce) for i in made.body)
    assert [a.name for a in made.axes] == ["i", "j"]
    generator = torch.Generator().manual_seed(0)
    given = {n: torch.randn(b.shape, generator=generator) for n, b in LAYOUTS.items()}
    results = [run_comp(each, given, LAYOUTS, {})["y"] for each in (comp, made)]
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def test_a_sum_of_negative_zeros_is_positive():
    comp = comp_of(BODIES["the same term each time"])
    zeros = {"x": torch.full((5, 2, 3, 40), -0.0)}
    found = run_comp(unrolled(comp, ("k", "l")), zeros, LAYOUTS, {})["y"]
    assert not torch.signbit(found).any()


@pytest.mark.parametrize("body", [
    "%0 = load x[i, k, l, j] : f32\n%1 = reduce.sum[k] %0 : f32\nstore y[i, j] %1",
    "%0 = load x[i, k, l, j] : f32\n%1 = reduce.sum[k,l] %0 : f32\n%2 = sub %0 %1 : f32\n"
    "store z[i, k, l, j] %2",
    "%0 = load x[i, k, l, j] : f32\n%1 = reduce.welford[k,l] %0 : f32\n%2 = pick.0 %1 : f32\n"
    "store y[i, j] %2",
], ids=["other axes", "stores along them", "two results"])  # fmt: skip
def test_what_cannot_be_written_out(body: str):
    assert not can_unroll(comp_of(body), ("k", "l"))


MEAN = "%0 = load x[{x}] : f32\n%1 = reduce.sum[k] %0 : f32\nstore y[i, j] %1"


def written(terms: int, index: str, strides: tuple[int, ...]):
    comp = parse_comp(f"comp c [i:64, k:{terms}, j:64] {{\n{MEAN.format(x=index)}\n}}")
    shape = (64, terms, 64)
    layouts = {
        "x": Buffer("x", shape, dtypes.f32, strides, "cpu"),
        "y": Buffer("y", (64, 64), dtypes.f32, (64, 1), "cpu"),
    }
    return formed(comp, layouts).comp


def reduces(comp) -> bool:
    return any(isinstance(i, Reduce) for i in comp.body)


def test_a_cpu_writes_out_few_terms_over_lanes_of_neighbours():
    assert not reduces(written(4, "i, k, j", (256, 64, 1)))
    assert reduces(written(9, "i, k, j", (576, 64, 1)))  # too many
    assert reduces(written(4, "i, k, j", (256, 1, 4)))  # along the terms, memory is read in order
