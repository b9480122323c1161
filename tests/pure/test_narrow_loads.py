"""Schedules of what is read in loads of a few bytes."""

from __future__ import annotations

import pytest

from torchweld.ir.parser import parse_graph
from torchweld.targets.find import named_target
from torchweld.templates.generate import kernels_of

H100 = named_target("H100")


@pytest.mark.parametrize("columns", [336, 333])
def test_loads_of_sums_over_rows_run_ahead(columns):
    """A thread has few loads of four bytes under way, wherever rows begin."""
    graph = parse_graph(f"""graph g {{
  buffer x : f32[64000, {columns}] strides [{columns}, 1] on cuda:0
  buffer y : f32[{columns}] strides [1] on cuda:0
  input x
  comp sum [i:64000, j:{columns}] {{
    %0 = load x[i, j] : f32
    %1 = reduce.sum[i] %0 : f32
    store y[j] %1
  }}
  output view(y, [{columns}], [1], 0)
}}""")
    (kernel,) = kernels_of(graph, H100)
    made = kernel.schedule.splits * -(-columns // kernel.schedule.block_rows)
    assert kernel.schedule.stages > 1 and 16 / 3 <= made / H100.units <= 12
