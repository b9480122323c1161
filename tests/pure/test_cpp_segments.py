"""Lanes are cut where comparisons change, and only there."""

from __future__ import annotations

import pytest
import torch

from torchweld.core import dtypes as d
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.templates.pointwise_reduce.cpu.generate import generate

CUT = """
comp cut [i:{rows}, j:{extent}] {{
  %0 = index {position} : i64
  %1 = const {limit} : i64
  %2 = lt %0 %1 : b1
  %3 = load x[i, j] if %2 else 0.0 : f32
  store y[i, j] %3
}}
"""


def source(text: str, shape: tuple[int, int]) -> str:
    strides = torch.empty(shape, device="meta").stride()
    buffers = {n: Buffer(n, shape, d.f32, strides) for n in "xy"}
    return generate(parse_comp(text), buffers).sources[0].text


def loops(rows=4000, **numbers) -> int:
    text = CUT.format(rows=rows, **numbers)
    return source(text, (rows, numbers["extent"])).count("omp simd")


def test_a_lane_is_cut_in_two():
    assert loops(extent=64, position="j", limit=24) == 2
    assert loops(extent=64, position="j-8", limit=24) == 2


@pytest.mark.parametrize("limit", [0, 64, 100, -3])
def test_no_cut_where_nothing_changes(limit):
    assert loops(extent=64, position="j", limit=limit) == 1


def test_short_lanes_are_left_together():
    assert loops(extent=15, position="j", limit=7) == 1
    assert loops(extent=64, position="j", limit=7) == 2


def test_what_changes_too_often_is_left_together():
    found = source(REFLECTED.format(made="mul %0 %0"), (4000, 102))
    assert found.count("omp simd") == 1


def test_a_lane_handed_out_in_blocks_is_cut_too():
    assert loops(rows=1, extent=64000, position="j", limit=24) == 2


REFLECTED = """
comp reflected [i:4000, j:102] {{
  %0 = index j-1 : i64
  %1 = {made} : i64
  %2 = load x[i, %1] : f32
  store y[i, j] %2
}}
"""


def test_reads_at_places_that_the_position_decides_are_of_adjacent_elements():
    found = source(REFLECTED.format(made="abs %0"), (4000, 102))
    assert found.count("omp simd") == 2
    assert "1 + -1 * " in found and "-1 + 1 * " in found


def test_a_lane_of_rows_is_cut_too():
    """Columns of a padded matrix are added up: a guard in the loop would keep it from vectors."""
    text = """
    comp sums [i:300, j:400] {
      %0 = index j : i64
      %1 = const 1 : i64
      %2 = lt %0 %1 : b1
      %3 = logical_not %2 : b1
      %4 = load x[i, j] if %3 else 0.0 : f32
      %5 = reduce.sum[i] %4 : f32
      store y[0, j] %5
    }"""
    found = source(text, (300, 400))
    assert "] ? p" not in found and "true ? p" in found


STENCIL = """
comp stencil [n:40, i:60, j:70] {
  %0 = index j-1 : i64
  %1 = const 0 : i64
  %2 = ge %0 %1 : b1
  %3 = index j : i64
  %4 = const 69 : i64
  %5 = lt %3 %4 : b1
  %6 = bit_and %2 %5 : b1
  %7 = index i-1 : i64
  %8 = ge %7 %1 : b1
  %9 = index n-1 : i64
  %10 = ge %9 %1 : b1
  %11 = index 38-n : i64
  %12 = ge %11 %1 : b1
  %13 = bit_and %8 %10 : b1
  %14 = bit_and %13 %12 : b1
  %15 = bit_and %6 %14 : b1
  %16 = load x[n, i, j-1] if %15 else 0.0 : f32
  %17 = load x[n, i, j+1] if %15 else 0.0 : f32
  %18 = load x[n, i-1, j] if %15 else 0.0 : f32
  %19 = load x[n-1, i, j] if %15 else 0.0 : f32
  %20 = add %16 %17 : f32
  %21 = sub %20 %18 : f32
  %22 = mul %21 %19 : f32
  %23 = div %22 %21 : f32
  %24 = const 0.0 : f32
  %25 = where %15 %23 %24 : f32
  store y[n, i, j] %25
}
"""


def test_conditions_of_rows_are_asked_before_a_lane_in_segments():
    """And few elements at its ends are computed one by one, not copied with the whole lane."""
    text = source(STENCIL, (40, 60, 70))
    (asked,) = [line for line in text.splitlines() if line.strip().startswith("if (v")]
    assert asked.count("&&") == 2
    assert "alignas(64) float m" not in text
    assert "69 - 16 + l" in text  # what a vector leaves of the middle overlaps the one before
