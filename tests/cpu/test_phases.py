"""Lanes whose positions repeat in a pattern (templates/pointwise_reduce/cpu/phases.py)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from cpp_runner import layouts, reference, run
from torchweld.core import dtypes as d
from torchweld.ir.parser import parse_comp
from torchweld.templates.pointwise_reduce.cpu.generate import generate

TURNS = "for (int64_t w = "
ROWS = 200  # a lane of fewer is handed out in blocks

# y[i, j] = the value of the window that holds j, if its chosen element is j; rows have windows, too
CHOSEN = """
comp chosen [i:{rows}, j:{extent}] {{
  %0 = index j+{padding} : i64
  %1 = cast %0 : i32
  %2 = const {count} : i32
  %3 = trunc_div %1 %2 : i32
  %4 = mul %3 %2 : i32
  %5 = sub %1 %4 : i32
  %6 = const {windows} : i32
  %7 = lt %3 %6 : b1
  %8 = index i : i64
  %9 = const 2 : i64
  %10 = remainder %8 %9 : i64
  %11 = const 0 : i64
  %12 = eq %10 %11 : b1
  %13 = bit_and %7 %12 : b1
  %14 = cast %3 : i64
  %15 = load t[i, %14] if %13 else -1 : i32
  %16 = load g[i, %14] if %13 else 0.0 : {dtype}
  %17 = eq %15 %5 : b1
  %18 = const 0.0 : {dtype}
  %19 = where %17 %16 %18 : {dtype}
  store y[i, j] %19
}}
"""


def chosen(count: int, extent: int, padding: int, dtype=d.f32, rows: int = ROWS):
    """(Comp, tensors, outputs): windows as far as they begin within the lane."""
    windows = (extent + padding) // count
    text = CHOSEN.format(
        rows=rows, extent=extent, padding=padding, count=count, windows=windows, dtype=dtype)
    generator = torch.Generator().manual_seed(extent)
    draw = {"dtype": torch.int32, "generator": generator}
    taps = torch.randint(0, count, (rows, windows), **draw)
    values = torch.randn(rows, windows, generator=generator).to(dtypes_of(dtype))
    return parse_comp(text), {"t": taps, "g": values}, {"y": ((rows, extent), dtype)}


def dtypes_of(dtype) -> torch.dtype:
    return {d.f32: torch.float32, d.bf16: torch.bfloat16, d.f16: torch.float16}[dtype]


def text_of(comp, tensors, outputs) -> str:
    return generate(comp, layouts(comp, tensors, outputs)).sources[0].text


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("extent", [64, 67, 131])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", [d.f32, d.bf16, d.f16], ids=str)
def test_what_a_window_gives_to_its_elements(count, extent, padding, dtype):
    case = chosen(count, extent, padding, dtype)
    assert (TURNS in text_of(*case)) == (count != 5)
    assert torch.equal(run(*case)["y"].double(), reference(*case)["y"].double())


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("extent", [2047, 2050, 9001])
def test_lanes_in_blocks(extent, count):
    case = chosen(count, extent, 1, rows=3)
    text = text_of(*case)
    assert TURNS in text and "low_" in text
    assert torch.equal(run(*case)["y"].double(), reference(*case)["y"].double())


def test_guards_of_rows_choose_a_pointer_before_the_loop():
    text = text_of(*chosen(2, 64, 0))
    loop = text[text.index(TURNS) :]
    assert "? &p" not in loop and "] ? " not in loop and "h3[" not in text


@pytest.mark.parametrize("extent", [15, 24])
def test_short_lanes_have_no_pattern(extent):
    assert (TURNS in text_of(*chosen(2, extent, 0))) == (extent == 24)


NEAREST = """
comp nearest [i:200, j:{extent}] {{
  %0 = index j : i64
  %1 = cast %0 : f32
  %2 = const {scale} : f32
  %3 = mul %1 %2 : f32
  %4 = cast %3 : i64
  %5 = load x[i, %4] : f32
  store y[i, j] %5
}}
"""


@pytest.mark.parametrize(
    ("extent", "scale", "found"), [(96, 0.5, 1), (97, 0.25, 1), (96, 0.8125, 0)]
)
def test_positions_computed_in_floats(extent, scale, found):
    comp = parse_comp(NEAREST.format(extent=extent, scale=scale))
    case = comp, {"x": torch.randn(ROWS, extent)}, {"y": ((ROWS, extent), d.f32)}
    assert text_of(*case).count(TURNS) == found
    assert torch.equal(run(*case)["y"], reference(*case)["y"].float())


SUMMED = """
comp summed [i:{rows}, j:{extent}] {{
  %0 = index j : i64
  %1 = cast %0 : i32
  %2 = const {count} : i32
  %3 = trunc_div %1 %2 : i32
  %4 = mul %3 %2 : i32
  %5 = sub %1 %4 : i32
  %6 = cast %3 : i64
  %7 = load t[i, %6] : i8
  %8 = cast %7 : i32
  %9 = eq %8 %5 : b1
  %10 = load g[i, %6] : {dtype}
  %11 = cast %10 : f32
  %12 = const 0.0 : f32
  %13 = where %9 %11 %12 : f32
  %14 = load x[i, j] : {dtype}
  %15 = cast %14 : f32
  %16 = mul %13 %15 : f32
  %17 = reduce.sum[j] %13 : f32
  %18 = reduce.sum[j] %16 : f32
  %19 = add %13 %17 : f32
  store y[i, j] %19
  store s[i] %18
}}
"""


def summed(rows: int, extent: int, count: int, dtype):
    """(Comp, tensors, outputs), of integers: no order of adding them up makes a difference."""
    comp = parse_comp(SUMMED.format(rows=rows, extent=extent, count=count, dtype=dtype))
    generator = torch.Generator().manual_seed(extent)
    windows, kind = -(-extent // count), dtypes_of(dtype)

    def numbers(most: int, columns: int) -> torch.Tensor:
        return torch.randint(0, most, (rows, columns), generator=generator)

    taps = numbers(count, windows).to(torch.int8)
    given = {"t": taps, "g": numbers(5, windows).to(kind), "x": numbers(4, extent).to(kind)}
    return comp, given, {"y": ((rows, extent), d.f32), "s": ((rows,), d.f32)}


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("extent", [24, 40, 64, 72, 96, 264, 67])
@pytest.mark.parametrize("dtype", [d.f32, d.bf16, d.f16], ids=str)
def test_sums_of_what_windows_give(dtype, extent, count):
    case = summed(150, extent, count, dtype)
    whole = count != 3 and extent % count == 0 and extent > max(32, 8 * count - 1)
    assert ("for (int64_t t = 0; t < " in text_of(*case)) == whole
    found, wanted = run(*case), reference(*case)
    assert all(torch.equal(found[n].double(), wanted[n].double()) for n in ("y", "s"))


@pytest.mark.parametrize("extent", [60_002, 60_006, 40_000])
@pytest.mark.parametrize("rows", [1, 2])
def test_sums_of_rows_that_threads_share(rows, extent):
    """Each begins anywhere, within a window too."""
    case = summed(rows, extent, 2, d.f32)
    assert "tid / parts" in text_of(*case)
    found, wanted = run(*case), reference(*case)
    assert all(torch.equal(found[n].double(), wanted[n].double()) for n in ("y", "s"))


WIDE = {
    "row": ((2, 3, 201), lambda x: F.max_pool1d(x, 3, 2, 1)),
    "row, side by side": ((2, 3, 100), lambda x: F.max_pool1d(x, 2)),
    "stem": ((2, 3, 13, 67), lambda x: F.max_pool2d(x, 3, 2, 1)),
    "in steps of three": ((2, 3, 9, 64), lambda x: F.max_pool2d(x, (2, 3), (1, 3))),
    "rounded up": ((2, 3, 10, 65), lambda x: F.max_pool2d(x, 2, ceil_mode=True)),
    "volume": ((2, 2, 5, 6, 66), lambda x: F.max_pool3d(x, 2, 2)),
    "average": ((2, 3, 13, 67), lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "nearest": ((2, 3, 8, 33), lambda x: F.interpolate(x, scale_factor=2)),
    "bilinear": ((2, 3, 8, 33), lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "repeated": ((2, 3, 33), lambda x: x.repeat_interleave(4, -1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_windows_of_long_rows(name, dtype):
    torch.manual_seed(0)
    shape, function = WIDE[name]
    x = torch.randn(shape).mul(2).round().to(dtype)  # many are equal
    x.view(-1)[3:5] = float("nan") if "max" in function.__code__.co_names else 0
    found = []
    for way, given in ((function, x), (torchweld.fuse(function), x), (function, x.double())):
        given = given.clone().requires_grad_()
        result = way(given)
        weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        found.append((result, *torch.autograd.grad(result, given, weights.to(result.dtype))))
    for eager, ours, true in zip(*found):
        error, allowed = ((t.double() - true).nan_to_num().norm() for t in (ours, eager))
        right = true.detach().nan_to_num().norm()
        assert error <= 1.5 * allowed + torch.finfo(dtype).eps * right
        assert torch.equal(ours.isnan(), eager.isnan())


def test_a_maximum_of_rows_is_no_call():
    """Where ATen gives its gradient from one element to the next, in 64 bits."""
    fused = torchweld.fuse(lambda x: F.max_pool1d(x, 2))
    fused(torch.randn(4, 4, 200, requires_grad=True)).sum().backward()
    called = [n for r in torchweld.records(fused)[-2:] for n in r.graph.nodes
              if hasattr(n, "target")]  # fmt: skip
    assert not called
