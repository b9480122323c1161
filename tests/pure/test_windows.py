"""Windows of buffers: a Comp that reads some rows, as one that reads a smaller buffer."""

from __future__ import annotations

import pytest

from torchweld.ir.parser import parse_graph
from torchweld.ir.windows import Windowed, windowed


def of(
    load: str, axes: str = "i:8, j:6", shape: str = "[32, 6]", strides: str = "[6, 1]"
) -> Windowed:
    """The windows of y = x + x, x read as `load` says."""
    graph = parse_graph(f"""graph g {{
  buffer x : f32{shape} strides {strides} on cpu
  buffer y : f32[8, 6] strides [6, 1] on cpu
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
