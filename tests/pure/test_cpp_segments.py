"""Lanes are cut where comparisons change, and only there."""

from __future__ import annotations

import pytest
import torch

from torchweld.codegen.cpp import generate
from torchweld.core import dtypes as d
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp

CUT = """
comp cut [i:4000, j:{extent}] {{
  %0 = index {position} : i64
  %1 = const {limit} : i64
  %2 = lt %0 %1 : b1
  %3 = load x[i, j] if %2 else 0.0 : f32
  store y[i, j] %3
}}
"""


def loops(**numbers) -> int:
    shape = (4000, numbers["extent"])
    strides = torch.empty(shape, device="meta").stride()
    buffers = {n: Buffer(n, shape, d.f32, strides) for n in "xy"}
    return generate(parse_comp(CUT.format(**numbers)), buffers).sources[0].text.count("omp simd")


def test_a_lane_is_cut_in_two():
    assert loops(extent=64, position="j", limit=24) == 2
    assert loops(extent=64, position="j-8", limit=24) == 2


@pytest.mark.parametrize("limit", [0, 64, 100, -3])
def test_no_cut_where_nothing_changes(limit):
    assert loops(extent=64, position="j", limit=limit) == 1


def test_short_segments_are_left_together():
    assert loops(extent=64, position="j", limit=7) == 1


def test_only_the_lane_itself_is_compared():
    assert loops(extent=64, position="2*j", limit=40) == 1
