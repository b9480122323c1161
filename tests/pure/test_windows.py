"""Windows of buffers: a Comp that reads some rows, as one that reads a smaller buffer."""

from __future__ import annotations

import pytest

from torchweld.ir.parser import parse_graph
from torchweld.ir.windows import Windowed, windowed


def of(
    load: str, axes: str = "i:8, j:6", shape: str = "[32, 6]", strides: str = "[6, 1]",
    device: str = "cuda:0",
) -> Windowed:  # fmt: skip
    """The windows of y = x + x, x read as `load` says."""
    graph = parse_graph(f"""graph g {{
  buffer x : f32{shape} strides {strides} on {device}
  buffer y : f32[8, 6] strides [6, 1] on {device}
  input x
  comp y [{axes}] {{
    %0 = load {load} : f32
    %1 = add %0 %0 : f32
    store y[i, j] %1
  }}
  output view(y, [8, 6], [6, 1], 0)
}}""")
    return windowed(graph.nodes[0], graph.buffers)


@pytest.mark.parametrize("row", [0, 2, 24])
def test_rows_are_a_smaller_buffer_further_on(row):
    found = of(f"x[i+{row}, j]" if row else "x[i, j]")
    assert found.offsets == {"x": row * 6} and found.offset_bytes == {"x": row * 24}
    assert found.buffers["x"].shape == (8, 6)
    assert found.comp == of("x[i, j]").comp


def test_an_address_that_is_not_aligned_stays():
    assert not of("x[i+1, j]").buffers


def test_what_is_read_whole_stays():
    assert not of("x[i, j]", shape="[8, 6]").buffers


@pytest.mark.parametrize("load", ["x[4*i, j]", "x[i, 2*j]"])
def test_only_rows_are_cut(load):
    """A dense buffer whose last column is not read stays dense."""
    found = of(load, shape="[32, 12]", strides="[12, 1]")
    assert all(b.shape[1:] == (12,) for b in found.buffers.values())


@pytest.mark.parametrize("load, start, shape", [
    ("x[i+1, j]", 6, (8, 6)), ("x[4*i+3, j]", 18, (29, 6)), ("x[3, j]", 18, (1, 6)),
    ("x[i, 2]", 2, (8, 1)), ("x[i+5, 2*j]", 60, (8, 12)),
])  # fmt: skip
def test_pointwise_kernels_of_a_cpu_read_windows_anywhere(load, start, shape):
    wide = {"shape": "[32, 12]", "strides": "[12, 1]"} if "2*j" in load else {}
    found = of(load, device="cpu", **wide)
    assert found.offsets == {"x": start} and found.buffers["x"].shape == shape


def test_rows_that_are_reduced_on_a_cpu_are_cut_along_the_first_dimension():
    graph = parse_graph("""graph g {
  buffer x : f32[32, 9] strides [9, 1] on cpu
  buffer y : f32[8] strides [1] on cpu
  input x
  comp y [i:8, j:6] {
    %0 = load x[i+1, j+2] : f32
    %1 = reduce.sum[j] %0 : f32
    store y[i] %1
  }
  output view(y, [8], [1], 0)
}""")
    found = windowed(graph.nodes[0], graph.buffers)
    assert found.offsets == {"x": 9} and found.buffers["x"].shape == (8, 9)
