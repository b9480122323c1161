"""Arithmetic on indices in 32 bits: the same results, and 64 bits only where they are needed."""

from __future__ import annotations

import pytest
import torch

from torchweld.core import dtypes
from torchweld.ir.check import check_comp
from torchweld.ir.expand import expanded
from torchweld.ir.interpret import run_comp
from torchweld.ir.narrow import narrowed
from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.parser import parse_comp
from torchweld.ir.printer import text

LAYOUTS = {
    "x": Buffer("x", (7, 10), dtypes.f32, (10, 1), "cpu"),
    "at": Buffer("at", (12,), dtypes.i64, (1,), "cpu"),
    "y": Buffer("y", (12, 20), dtypes.f32, (20, 1), "cpu"),
    "k": Buffer("k", (12, 20), dtypes.i64, (20, 1), "cpu"),
}
NEAREST = """
  %0 = index j : i64
  %1 = cast %0 : f32
  %2 = const 0.5 : f32
  %3 = mul %1 %2 : f32
  %4 = cast %3 : i64
  %5 = const 0 : i64
  %6 = lt %4 %5 : b1
  %7 = const 10 : i64
  %8 = add %4 %7 : i64
  %9 = where %6 %8 %4 : i64
  %10 = const 11 : i64
  %11 = minimum %9 %10 : i64
  %12 = const 7 : i64
  %13 = index i-5 : i64
  %14 = remainder %13 %12 : i64
  %15 = load x[%14, %11] : f32
"""
# At floor(j / 2) of row (i - 5) % 7, where j is odd; the index itself is an output too.
HALVES = """
  %0 = index j-1 : i64
  %1 = const 2 : i64
  %2 = remainder %0 %1 : i64
  %3 = const 0 : i64
  %4 = eq %2 %3 : b1
  %5 = floor_div %0 %1 : i64
  %6 = maximum %5 %3 : i64
  %7 = load x[0, %6] if %4 else 0.0 : f32
"""
LOADED = """
  %0 = load at[i] : i64
  %1 = index j : i64
  %2 = add %0 %1 : i64
  %3 = const 3 : i64
  %4 = remainder %2 %3 : i64
  %5 = load x[%4, 0] : f32
"""


def comp_of(body: str, stores: str) -> Comp:
    return parse_comp(f"comp c [i:12, j:20] {{\n{body}\n{stores}\n}}")


def results(comp: Comp) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    given = {"x": torch.randn(7, 10), "at": torch.arange(12) * 2**40}
    return run_comp(comp, given, LAYOUTS, {})


@pytest.mark.parametrize("body, value, index", [(NEAREST, 15, 11), (HALVES, 7, 5), (LOADED, 5, 4)])
def test_the_same_results(body, value, index):
    comp = comp_of(body, f"store y[i, j] %{value}\nstore k[i, j] %{index}")
    small = narrowed(comp)
    check_comp(small, LAYOUTS)
    before, after = results(comp), results(small)
    assert torch.equal(before["y"], after["y"]) and torch.equal(before["k"], after["k"])


def test_what_bounds_decide_is_not_computed():
    lines = text(narrowed(comp_of(NEAREST, "store y[i, j] %15")))
    assert "i64" not in lines
    assert not any(name in lines for name in (" where ", " lt ", " minimum ", " add "))


def test_a_power_of_two_divides_by_bits():
    lines = text(narrowed(comp_of(HALVES, "store y[i, j] %7")))
    assert "floor_div" not in lines and "remainder" not in lines


def test_what_is_loaded_has_64_bits():
    comp = comp_of(LOADED, "store y[i, j] %5")
    assert "add %0" in text(narrowed(comp)) and "remainder" in text(narrowed(comp))


def test_running_maxima_of_places():
    x = torch.arange(70.0).reshape(7, 10).remainder(3)
    comp = parse_comp("""comp c [i:7, j:10] {
      %0 = load x[i, j] : f32
      %1 = scan.max[j] %0 : f32
      %2 = index j : i64
      %3 = eq %0 %1 : b1
      %4 = const 0 : i64
      %5 = where %3 %2 %4 : i64
      %6 = scan.max[j] %5 : i64
      store at[i, j] %6
    }""")
    small = narrowed(comp)
    check_comp(small)
    assert "scan.max[j] %5 : i32" in text(small)
    layouts = {**LAYOUTS, "at": Buffer("at", (7, 10), dtypes.i64, (10, 1), "cpu")}
    for one in (comp, small):
        assert torch.equal(run_comp(one, {"x": x}, layouts, {})["at"], x.cummax(1).indices)


@pytest.mark.parametrize("extent, narrow", [(2**31, True), (2**31 + 1, False)])
def test_the_position_of_an_extreme(extent, narrow):
    """A loop keeps it in 32 bits, the store has 64."""
    comp = parse_comp(f"""comp c [i:7, j:{extent}] {{
      %0 = load x[i, 0] : f32
      %1 = index j : i64
      %2 = reduce.argmin[j] %0 %1 : f32
      %3 = pick.1 %2 : i64
      store at[i] %3
    }}""")
    small = narrowed(comp)
    check_comp(small)
    assert ("index j : i32" in text(small)) == ("pick.1 %2 : i32" in text(small)) == narrow
    assert small.body[small.stores[0].value].dtype == dtypes.i64


@pytest.mark.parametrize("monoid", ["argmax", "argmin"])
def test_narrow_positions_are_those_of_the_first_of_equals_and_of_nan(monoid):
    x = torch.arange(70.0).reshape(7, 10).remainder(3)
    x[2, 3:9:2] = float("nan")
    comp = parse_comp(f"""comp c [i:7, j:10] {{
      %0 = load x[i, j] : f32
      %1 = index 3*j+1 : i64
      %2 = reduce.{monoid}[j] %0 %1 : f32
      %3 = pick.1 %2 : i64
      store at[i] %3
    }}""")
    layouts = {**LAYOUTS, "at": Buffer("at", (7,), dtypes.i64, (1,), "cpu")}
    wanted = 3 * getattr(torch, monoid)(x, 1) + 1
    assert torch.equal(run_comp(comp, {"x": x}, layouts, {})["at"], wanted)
    assert torch.equal(run_comp(narrowed(comp), {"x": x}, layouts, {})["at"], wanted)
    assert torch.equal(run_comp(expanded(narrowed(comp)), {"x": x}, layouts, {})["at"], wanted)


@pytest.mark.parametrize("extent, narrow", [(2**31, True), (2**31 + 1, False)])
def test_extents_beyond_32_bits(extent, narrow):
    comp = parse_comp(f"""comp c [i:{extent}] {{
      %0 = index i : i64
      %1 = const 3 : i64
      %2 = floor_div %0 %1 : i64
      %3 = cast %2 : f32
      store y[i] %3
    }}""")
    assert ("i64" not in text(narrowed(comp))) == narrow


def test_a_float_that_may_be_nan_has_no_bounds():
    comp = comp_of("""
      %0 = load x[0, 0] : f32
      %1 = const 0.0 : f32
      %2 = maximum %0 %1 : f32
      %3 = const 9.0 : f32
      %4 = minimum %2 %3 : f32
      %5 = cast %4 : i64
      %6 = const 9 : i64
      %7 = minimum %5 %6 : i64""", "store k[i, j] %7")  # fmt: skip
    assert "minimum %5" in text(narrowed(comp))


@pytest.mark.parametrize("extent, narrow", [(2**31 - 1, True), (2**31, False)])
def test_a_count_has_32_bits_where_they_hold_it(extent, narrow):
    comp = parse_comp(f"""comp c [i:7, j:{extent}] {{
      %0 = load x[i, 0] : f32
      %1 = const 0.0 : f32
      %2 = lt %0 %1 : b1
      %3 = cast %2 : i64
      %4 = reduce.sum[j] %3 : i64
      store at[i] %4
    }}""")
    small = narrowed(comp)
    check_comp(small)
    assert ("reduce.sum[j] %3 : i32" in text(small)) == narrow
    assert small.body[small.stores[0].value].dtype == dtypes.i64


def test_counts_and_running_counts():
    x = torch.arange(70.0).reshape(7, 10).remainder(3)
    comp = parse_comp("""comp c [i:7, j:10] {
      %0 = load x[i, j] : f32
      %1 = const 1.0 : f32
      %2 = lt %0 %1 : b1
      %3 = cast %2 : i64
      %4 = reduce.sum[j] %3 : i64
      %5 = scan.sum[j] %3 : i64
      %6 = index j : i64
      %7 = reduce.max[j] %6 : i64
      %8 = add %4 %5 : i64
      %9 = add %8 %7 : i64
      store at[i, j] %9
    }""")
    small = narrowed(comp)
    check_comp(small)
    assert all(f"{kind}[j]" in text(small) for kind in ("reduce.sum", "scan.sum", "reduce.max"))
    assert text(small).count(" : i64") == 1
    layouts = {**LAYOUTS, "at": Buffer("at", (7, 10), dtypes.i64, (10, 1), "cpu")}
    less = (x < 1).long()
    wanted = less.sum(1, keepdim=True) + less.cumsum(1) + 9
    for one in (comp, small):
        assert torch.equal(run_comp(one, {"x": x}, layouts, {})["at"], wanted)
