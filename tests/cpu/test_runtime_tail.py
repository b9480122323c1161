"""Programs that are replayed: a stand-in for CUDA graphs that takes the same steps again."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from weakref import WeakSet

import pytest
import torch

from torchweld.core.options import Options
from torchweld.ir.parser import parse_graph
from torchweld.runtime import graphs, recordable, shape
from torchweld.runtime.graphs import GraphedProgram
from torchweld.runtime.load import load
from torchweld.runtime.memory import ArenaPool
from torchweld.runtime.placement import tail_start
from torchweld.runtime.program import Paused, Program, _take

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


class Replays:
    """In place of torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.paused: Paused | None = None
        self.start: list = []

    def replay(self) -> None:
        tensors, bases = self.start.copy(), self.paused.bases
        _take(self.paused.shaped.steps, tensors, bases)
        self.paused.tensors[:] = tensors


class Domain:
    lock, arenas, recordings = threading.RLock(), ArenaPool(), WeakSet()

    def follow(self, stream) -> None:
        pass


@pytest.fixture(params=["tail", "no tail"])
def graphed(request, monkeypatch):
    graph = parse_graph(TEXT)
    constant = torch.tensor([1.0, 2.0, 3.0])
    made = []

    def run_head(self, arenas, args):
        inner = original(self, arenas, args)
        made[-1].paused = inner
        made[-1].start = list(starts[-1])
        return inner

    def take(steps, tensors, bases):
        starts.append(tensors.copy())
        _take(steps, tensors, bases)

    starts: list = []
    original = Program.run_head

    @contextmanager
    def capture(recording, domain, draws, shared):
        made.append(recording)
        with monkeypatch.context() as patched:
            patched.setattr("torchweld.runtime.program._take", take)
            yield

    monkeypatch.setattr(Program, "run_head", run_head)
    monkeypatch.setattr(graphs, "_capture", capture)
    monkeypatch.setattr(graphs, "_domain", lambda device: Domain())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replays)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    start = tail_start(graph, {}) if request.param == "tail" else len(graph.nodes)
    monkeypatch.setattr(shape._Shaper, "_tail_start", lambda self: start)
    monkeypatch.setattr(recordable, "tail_start", lambda graph, sizes: start)
    program = load(graph, {}, {"c": constant}, Options(), static_inputs=frozenset({1}))
    return GraphedProgram(program), constant


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
