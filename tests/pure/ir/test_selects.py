"""Choices between two ways that compute the same, and what no way needs."""

from __future__ import annotations

import pytest
import torch

from torchweld.core import dtypes
from torchweld.ir.check import check_comp
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Buffer, Comp, Load
from torchweld.ir.parser import parse_comp
from torchweld.ir.printer import text
from torchweld.ir.selects import settled

LAYOUTS = {n: Buffer(n, (9, 5), dtypes.f32, (5, 1), "cpu") for n in ("x", "w", "y")}
# Rows of x over rows of w, two rows on, and from the start again.
ROLLED = """
  %0 = index i : i64
  %1 = const 7 : i64
  %2 = lt %0 %1 : b1
  %3 = load x[i+2, j] if %2 else 0.0 : f32
  %4 = load w[i+2, j] if %2 else 0.0 : f32
  %5 = div %3 %4 : f32
  %6 = const 0.0 : f32
  %7 = where %2 %5 %6 : f32
  %8 = logical_not %2 : b1
  %9 = load x[i-7, j] if %8 else 0.0 : f32
  %10 = load w[i-7, j] if %8 else 0.0 : f32
  %11 = div %9 %10 : f32
  %12 = where %8 %11 %6 : f32
  %13 = where %2 %7 %12 : f32
  store y[i, j] %13
"""
# 1 / x where j is even, and zero.
EVERY_SECOND = """
  %0 = index j : i64
  %1 = const 2 : i64
  %2 = remainder %0 %1 : i64
  %3 = const 0 : i64
  %4 = eq %2 %3 : b1
  %5 = load x[i, j] if %4 else 0.0 : f32
  %6 = reciprocal %5 : f32
  %7 = const 0.0 : f32
  %8 = where %4 %6 %7 : f32
  store y[i, j] %8
"""


def comp_of(body: str) -> Comp:
    return parse_comp(f"comp c [i:9, j:5] {{\n{body}\n}}")


def result(comp: Comp) -> torch.Tensor:
    torch.manual_seed(0)
    return run_comp(comp, {"x": torch.randn(9, 5), "w": torch.randn(9, 5)}, LAYOUTS, {})["y"]


@pytest.mark.parametrize("body", [ROLLED, EVERY_SECOND])
def test_the_same_results(body):
    check_comp(settled(comp_of(body)), LAYOUTS)
    assert torch.equal(result(settled(comp_of(body))), result(comp_of(body)))


def test_both_ways_divide_once():
    lines = text(settled(comp_of(ROLLED)))
    assert lines.count(" div ") == 1
    assert lines.count(" where ") == 2  # of what is divided, and by what


def test_what_is_not_needed_is_one():
    for body in (ROLLED, EVERY_SECOND):
        loads = [i for i in settled(comp_of(body)).body if isinstance(i, Load)]
        assert [i.fill for i in loads] == [1.0] * len(loads)


def test_a_fill_that_is_needed_stays():
    body = EVERY_SECOND.replace("store y[i, j] %8", "%9 = add %8 %5 : f32\n store y[i, j] %9")
    comp = comp_of(body)
    (load,) = [i for i in settled(comp).body if isinstance(i, Load)]
    assert load.fill == 0.0
    assert torch.equal(result(settled(comp)), result(comp))


def test_a_guard_along_another_axis_tells_nothing():
    """The row's sum is needed at some j: whether x is read at i alone does not tell."""
    comp = comp_of("""
      %0 = index j : i64
      %1 = const 2 : i64
      %2 = lt %0 %1 : b1
      %3 = index i : i64
      %4 = lt %3 %1 : b1
      %5 = load x[i, 0] if %4 else 0.0 : f32
      %6 = exp %5 : f32
      %7 = const 3.0 : f32
      %8 = where %2 %6 %7 : f32
      store y[i, j] %8""")
    (load,) = [i for i in settled(comp).body if isinstance(i, Load)]
    assert load.fill == 0.0


def test_shared_parts_take_no_longer():
    """Each step uses the one before twice."""
    ways = []
    for name, first, guard in (("x", 3, 2), ("w", 50, 49)):
        lines = [f"%{first} = load {name}[i, j] if %{guard} else 1.0 : f32"]
        for k in range(first, first + 45):
            lines.append(f"%{k + 1} = mul %{k} %{k} : f32")
        ways.append("\n".join(lines))
    comp = comp_of(f"""
      %0 = index i : i64
      %1 = const 5 : i64
      %2 = lt %0 %1 : b1
      {ways[0]}
      %49 = logical_not %2 : b1
      {ways[1]}
      %96 = where %2 %48 %95 : f32
      store y[i, j] %96""")
    assert text(settled(comp)).count(" mul ") == 46  # a first product costs what a choice does
