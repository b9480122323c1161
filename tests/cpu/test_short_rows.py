"""Reductions over windows whose rows are shorter than a vector (Kernel.has_short_rows)."""

from __future__ import annotations

import pytest
import torch

from cpp_runner import error, layouts, reference, run
from torchweld.core import dtypes as d
from torchweld.ir.parser import parse_comp
from torchweld.templates.pointwise_reduce.cpu.generate import generate

MEANS = """
comp means [c:{planes}, h:3, w:5, i:{taps}, j:{extent}] {{
  %0 = load x[c, {taps}*h+i, {extent}*w+j] : {dtype}
  %1 = cast %0 : f32
  %2 = reduce.{monoid}[i, j] %1 : f32
  %3 = div %2 %2 : f32
  store y[c, h, w] %2
  store z[c, h, w] %3
}}
"""
KINDS = {d.f32: torch.float32, d.bf16: torch.bfloat16, d.f16: torch.float16}


def windows(taps: int, extent: int, monoid: str = "sum", dtype=d.f32):
    """(Comp, tensors, outputs). x is as small as it can be: what is read beyond it shows."""
    text = MEANS.format(planes=40, taps=taps, extent=extent, monoid=monoid, dtype=dtype)
    if dtype == d.f32:
        text = text.replace("  %1 = cast %0 : f32\n", "").replace("] %1", "] %0")
        text = text.replace("%2", "%1").replace("%3", "%2")
    generator = torch.Generator().manual_seed(extent)
    x = torch.randn(40, 3 * taps, 5 * extent, generator=generator) + 1
    return (parse_comp(text), {"x": x.to(KINDS[dtype])},
            {"y": ((40, 3, 5), d.f32), "z": ((40, 3, 5), d.f32)})  # fmt: skip


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("monoid", ["sum", "max", "prod"])
@pytest.mark.parametrize(("taps", "extent"), [(5, 5), (8, 8), (7, 3), (9, 13), (40, 4), (3, 15)])
def test_rows_of_a_part_of_a_vector(taps, extent, monoid, dtype):
    comp, tensors, outputs = windows(taps, extent, monoid, dtype)
    tensors = {n: t if monoid != "prod" else 1 + (t - 1) * 0.01 for n, t in tensors.items()}
    found, exact = run(comp, tensors, outputs), reference(comp, tensors, outputs)
    assert error(found["y"], exact["y"].double()) <= 4e-7


def test_nothing_beside_a_row_joins():
    comp, tensors, outputs = windows(5, 5)
    x = tensors["x"]
    x[:, :, 5:10] = float("nan")
    found = run(comp, tensors, outputs)["y"]
    assert found[:, :, 1].isnan().all() and not found[:, :, [0, 2, 3, 4]].isnan().any()


@pytest.mark.parametrize(("extent", "lanes"), [(5, 8), (8, 8), (3, 4), (9, 16), (16, 16)])
def test_partial_sums_of_all_rows_are_one_vector(extent, lanes):
    case = windows(6, extent)
    text = generate(case[0], layouts(*case)).sources[0].text
    part = text[text.index("static void part") :]
    assert f"tw_lanes<float, {lanes}>" in part and "reduction(+" not in part
    assert (f"tw_lane[l] < {extent}" in part) == (extent != lanes)


LONE = """
comp rows [i:70, j:{extent}] {{
  %0 = load x[i, j] : {dtype}
  %1 = cast %0 : f32
  %2 = reduce.{monoid}[j] %1 : f32
  store y[i] %2
}}
"""


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("monoid", ["sum", "max"])
@pytest.mark.parametrize("extent", [9, 12, 15, 16, 17, 24, 31])
def test_lone_rows_of_less_than_a_vector_of_the_narrowest_type(extent, monoid, dtype):
    text = LONE.format(extent=extent, monoid=monoid, dtype=dtype)
    if dtype == d.f32:
        text = text.replace("  %1 = cast %0 : f32\n", "").replace("] %1", "] %0")
        text = text.replace("%2", "%1")
    x = torch.randn(70, extent, generator=torch.Generator().manual_seed(extent)).to(KINDS[dtype])
    x[3, 0] = torch.nan
    case = parse_comp(text), {"x": x}, {"y": ((70,), d.f32)}
    found, exact = run(*case)["y"], reference(*case)["y"]
    assert torch.equal(found.isnan(), exact.isnan()) and int(found.isnan().sum()) == 1
    assert error(found.nan_to_num(), exact.nan_to_num().double()) <= 4e-7
    source = generate(case[0], layouts(*case)).sources[0].text
    part = source[source.index("static void part") :]
    assert "tw_turn_rows<" in part or f"tw_across_{monoid}" in part
    assert "reduction(" not in part
