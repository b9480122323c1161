"""Tiles of kernels of a GPU whose accesses are unusual."""

from __future__ import annotations

import pytest

from torchweld.ir.nodes import Comp
from torchweld.ir.parser import parse_graph
from torchweld.targets.find import named_target
from torchweld.templates.pointwise_reduce.gpu.default import schedule
from torchweld.templates.pointwise_reduce.gpu.generate import generate

H100 = named_target("H100")


def source(graph) -> str:
    (comp,) = graph.nodes
    assert isinstance(comp, Comp)
    chosen = schedule(comp, graph.buffers, H100, {})
    (found,) = generate(comp, graph.buffers, chosen, {}).sources
    return found.text


def test_rows_whose_columns_are_all_found_by_index():
    """Nothing is read or written along the columns: there is no width to fill lines with."""
    text = source(parse_graph("""graph g {
  buffer x : i64[7, 14] strides [14, 1] on cuda:0
  buffer y : i32[1] strides [1] on cuda:0
  input x
  comp y [i:7, j:27] {
    %0 = index j : i32
    %1 = const 1 : i32
    %2 = shr %0 %1 : i32
    %3 = load x[i, %2] : i64
    %4 = const 33 : i64
    %5 = ge %3 %4 : b1
    %6 = const 1 : i32
    store y[0] %6 init 0 if %5
  }
  output view(y, [1], [1], 0)
}"""))
    assert "tl.store" in text


@pytest.mark.parametrize("steps, rows", [(40, 1), (4, 16)])
def test_rows_with_a_long_recurrence_are_alone_where_they_are_few(steps, rows):
    """y[t] = (y[t - 1] + x[t]) * x[t] behind a sum, for each i; memory runs along i."""
    chain = []
    for t in range(steps):
        v = 3 * t + 2
        chain += [f"%{v} = load x[{t}, i] : f32", f"%{v + 1} = add %{v - 1} %{v} : f32",
                  f"%{v + 2} = mul %{v + 1} %{v} : f32"]  # fmt: skip
    stores = [f"store y[{t}, i] %{3 * t + 4}" for t in range(steps)]
    body = "\n".join([*chain, *stores])
    graph = parse_graph(f"""graph g {{
  buffer x : f32[{steps}, 24] strides [24, 1] on cuda:0
  buffer s : f32[64, 24] strides [24, 1] on cuda:0
  buffer y : f32[{steps}, 24] strides [24, 1] on cuda:0
  input x, s
  comp y [i:24, j:64] {{
    %0 = load s[j, i] : f32
    %1 = reduce.sum[j] %0 : f32
    {body}
  }}
  output view(y, [{steps}, 24], [24, 1], 0)
}}""")
    (comp,) = graph.nodes
    assert schedule(comp, graph.buffers, H100, {}).block_rows == rows
