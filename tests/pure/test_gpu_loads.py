"""Where loads stand in a pointwise kernel of a GPU, and what tiles it has."""

from __future__ import annotations

import re

from torchweld.ir.nodes import Comp
from torchweld.ir.parser import parse_graph
from torchweld.targets.find import named_target
from torchweld.templates.pointwise_reduce.gpu.default import schedule
from torchweld.templates.pointwise_reduce.gpu.generate import generate

H100 = named_target("H100")
STEPS = 40


def recurrence() -> str:
    """y[t] = (y[t - 1] + x[t]) * x[t], for each i, all steps written out."""
    lines = ["%0 = const 0.0 : f32"]
    for t in range(STEPS):
        v = 3 * t + 1
        lines += [f"%{v} = load x[{t}, i] : f32", f"%{v + 1} = add %{max(0, v - 1)} %{v} : f32",
                  f"%{v + 2} = mul %{v + 1} %{v} : f32"]  # fmt: skip
    lines += [f"store y[{t}, i] %{3 * t + 3}" for t in range(STEPS)]
    return "\n".join(lines)


def source(graph) -> str:
    (comp,) = graph.nodes
    assert isinstance(comp, Comp)
    chosen = schedule(comp, graph.buffers, H100, {})
    (found,) = generate(comp, graph.buffers, chosen, {}).sources
    return found.text


def test_loads_of_a_long_chain_are_in_flight_together():
    """Not all: registers would not hold them. None waits for what is computed from the others."""
    text = source(parse_graph(f"""graph g {{
  buffer x : f32[{STEPS}, 100] strides [100, 1] on cuda:0
  buffer y : f32[{STEPS}, 100] strides [100, 1] on cuda:0
  input x
  comp y [i:100] {{
    {recurrence()}
  }}
  output view(y, [{STEPS}, 100], [100, 1], 0)
}}"""))
    kinds = re.findall(r"^ +v\d+ = (tl\.load|\S)", text, re.MULTILINE)
    ahead = [kinds[: at + 1].count("tl.load") for at, kind in enumerate(kinds) if kind != "tl.load"]
    computed = [n // 2 for n in range(len(ahead))]  # two operations for each load
    distances = [loaded - done for loaded, done in zip(ahead, computed)]
    assert max(distances) <= 26 and min(distances[:20]) >= 20


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
