"""Programs that are replayed: a stand-in for CUDA graphs that takes the same steps again."""

from __future__ import annotations

import pytest
import torch

from recorded import record_on_cpu
from torchweld.core.options import Options
from torchweld.ir.parser import parse_graph
from torchweld.runtime import recordable, shape
from torchweld.runtime.load import load
from torchweld.runtime.placement import tail_start

WIDE = 600
TEXT = f"""
graph step {{
  buffer x : f32[600, 8] strides [8, 1] on cpu
  buffer w : f32[8, {WIDE}] strides [{WIDE}, 1] on cpu frozen
  buffer c : f32[3] strides [1] on cpu frozen
  buffer h : f32[600, 8] strides [8, 1] on cpu
  buffer logits : f32[600, {WIDE}] strides [{WIDE}, 1] on cpu
  input x, w, c
  comp k [i:4800] {{
    %0 = load x[0, i] : f32
    %1 = mul %0 %0 : f32
    store h[0, i] %1
  }}
  extern head logits = "aten.mm.default"(view(h, [600, 8], [8, 1], 0), view(w, [8, {WIDE}], [{WIDE}, 1], 0)) {{
  }}
  output view(h, [600, 8], [8, 1], 0), view(logits, [600, {WIDE}], [{WIDE}, 1], 0), view(w, [8], [1], 8), view(c, [3], [1], 0), view(x, [4], [1], 2), 7
}}"""  # noqa: E501


@pytest.fixture(params=["tail", "no tail"])
def graphed(request, monkeypatch):
    graph = parse_graph(TEXT)
    constant = torch.tensor([1.0, 2.0, 3.0])
    record_on_cpu(monkeypatch)
    start = tail_start(graph, {}) if request.param == "tail" else len(graph.nodes)
    monkeypatch.setattr(shape._Shaper, "_tail_start", lambda self: start)
    monkeypatch.setattr(recordable, "tail_start", lambda graph, sizes: start)
    return load(graph, {}, {"c": constant}, Options(), static_inputs=frozenset({1})), constant


def test_replays_give_new_outputs(graphed):
    program, constant = graphed
    weight, kept = torch.randn(8, WIDE), []
    for _ in range(5):
        x = torch.randn(600, 8)
        kept.append((x, program([x, weight])))
    for x, (h, logits, row, same, window, number) in kept:
        torch.testing.assert_close(h, x * x, rtol=0, atol=0)
        torch.testing.assert_close(logits, (x * x) @ weight)
        assert row.data_ptr() == weight[0, 8:].data_ptr()
        assert window.data_ptr() == x[0, 2:].data_ptr()
        assert torch.equal(same, constant)
        assert number == 7
    assert len({h.data_ptr() for _, (h, *_) in kept}) == len(kept)
    assert len({logits.data_ptr() for _, (_, logits, *_) in kept}) == len(kept)


def test_the_tail_makes_what_is_large():
    graph = parse_graph(TEXT)
    assert tail_start(graph, {}) == 1
    assert tail_start(parse_graph(TEXT.replace("600", "60")), {}) == 2


IN_PLACE = TEXT.replace("  output view(h", """  comp again [i:4800] {
    %0 = load h[0, i] : f32
    %1 = const 1.0 : f32
    %2 = add %0 %1 : f32
    store h[0, i] %2
  }
  output view(h""")


def test_what_is_written_again_behind_a_large_output_is_no_tail(monkeypatch):
    """A replay copied what was there before the tail: from the second call on, the sum of the
    losses of a mixture of experts was the loss of its first layer."""
    graph = parse_graph(IN_PLACE)
    record_on_cpu(monkeypatch)
    monkeypatch.setattr(shape._Shaper, "_tail_start", lambda self: tail_start(graph, {}))
    program = load(graph, {}, {"c": torch.ones(3)}, Options(), static_inputs=frozenset({1}))
    weight = torch.randn(8, WIDE)
    for _ in range(5):
        x = torch.randn(600, 8)
        h, logits, *_ = program([x, weight])
        assert torch.equal(h, x * x + 1)
        torch.testing.assert_close(logits, (x * x) @ weight)
