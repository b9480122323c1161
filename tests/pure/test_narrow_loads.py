"""Schedules of what is read in loads of a few bytes."""

from __future__ import annotations

import pytest

from torchweld.ir.parser import parse_graph
from torchweld.targets.find import named_target
from torchweld.templates.generate import kernels_of

H100 = named_target("H100")


@pytest.mark.parametrize(("columns", "programs"), [(336, 8), (333, 16)])
def test_sums_over_rows_that_begin_anywhere_have_twice_the_programs(columns, programs):
    """A thread has few loads of four bytes under way. Copies of them that run ahead are slower."""
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
    assert kernel.schedule.stages == 1
    assert 2 / 3 * programs <= made / H100.units <= programs * 1.5
