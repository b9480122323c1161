"""Which temporaries become contiguous, and that the graph means the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torchweld.ir.affine import axis
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Graph, View
from torchweld.ir.parser import parse_graph
from torchweld.layout.layouts import contiguous_rows

PERMUTED, CONTIGUOUS = (35, 1, 5), (35, 7, 1)


def residual(view: str = "[2, 5, 7], [35, 1, 5], 0") -> Graph:
    """y = x + p with the strides of x; s = y summed over k; z = 2 y; c = a call on y"""
    graph = parse_graph(f"""graph g {{
  buffer x : f32[2, 7, 5] strides [35, 5, 1] on cpu
  buffer p : f32[5, 7] strides [7, 1] on cpu
  buffer y : f32[2, 5, 7] strides [35, 1, 5] on cpu
  buffer s : f32[2, 5] strides [5, 1] on cpu
  buffer z : f32[2, 5, 7] strides [35, 1, 5] on cpu
  buffer c : f32[2, 5, 7] strides [35, 1, 5] on cpu
  input x, p
  comp y [i:2, j:5, k:7] {{
    %0 = load x[i, k, j] : f32
    %1 = load p[j, k] : f32
    %2 = add %0 %1 : f32
    store y[i, j, k] %2
  }}
  comp s [i:2, j:5, k:7] {{
    %0 = load y[i, j, k] : f32
    %1 = reduce.sum[k] %0 : f32
    store s[i, j] %1
  }}
  comp z [i:2, j:5, k:7] {{
    %0 = load y[i, j, k] : f32
    %1 = add %0 %0 : f32
    store z[i, j, k] %1
  }}
  extern c c = "aten.neg.default"(view(y, {view})) {{
  }}
  output view(s, [2, 5], [5, 1], 0), view(z, [2, 5, 7], [35, 1, 5], 0), view(c, [2, 5, 7], [35, 1, 5], 0)
}}""")  # noqa: E501
    check_graph(graph)
    return graph


def laid_out(graph: Graph, loose=()) -> Graph:
    """The result, which computes the same numbers."""
    result = contiguous_rows(graph, loose)
    check_graph(result)
    inputs = (torch.randn(2, 7, 5), torch.randn(5, 7))
    for a, b in zip(run_graph(graph, inputs), run_graph(result, inputs)):
        assert a.dtype == torch.float64 and torch.equal(a, b) and a.shape == b.shape
    return result


def with_output(graph: Graph, view: View) -> Graph:
    return replace(graph, outputs=(*graph.outputs, view))


def test_rows_that_are_reduced_become_contiguous_and_windows_follow():
    graph = laid_out(residual())
    assert graph.buffers["y"].strides == CONTIGUOUS
    assert graph.nodes[-1].args == (View("y", (2, 5, 7), CONTIGUOUS),)
    assert {n: b for n, b in graph.buffers.items() if n != "y"} == {
        n: b for n, b in residual().buffers.items() if n != "y"
    }


@pytest.mark.parametrize(
    ("window", "moved"),
    [
        ("[2, 7, 5], [35, 5, 1], 0", ((2, 7, 5), (35, 1, 7))),
        ("[2, 1, 3, 7], [35, 4, 1, 5], 0", ((2, 1, 3, 7), (35, 4, 7, 1))),
        ("[4, 7], [0, 5], 0", ((4, 7), (0, 1))),
    ],
)
def test_windows_along_dimensions_are_moved(window, moved):
    graph = contiguous_rows(residual(view=window))
    assert graph.nodes[-1].args == (View("y", *moved),)


@pytest.mark.parametrize(
    "window",
    [
        "[2, 35], [35, 1], 0",  # across two dimensions
        "[14, 5], [5, 1], 0",
        "[2, 5, 3], [35, 1, 10], 0",  # every other element
        "[2, 4, 7], [35, 1, 5], 1",
        "[3, 3], [1, 1], 0",  # a dimension twice
    ],
)
def test_a_window_that_cannot_be_moved_keeps_the_buffer(window):
    graph = residual(view=window)
    assert contiguous_rows(graph) == graph


def test_what_is_seen_outside_stays_unless_only_the_backward_sees_it():
    graph = with_output(residual(), View("y", (2, 5, 7), PERMUTED))
    assert laid_out(graph) == graph
    loose = laid_out(graph, loose=(3,))
    assert loose.buffers["y"].strides == loose.outputs[3].strides == CONTIGUOUS


def test_a_reduction_along_the_present_order_keeps_it():
    graph = residual()
    summed = graph.nodes[1]
    columns = replace(summed, body=(summed.body[0], replace(summed.body[1], axes=("j",))))
    store = replace(summed.stores[0], index=(summed.stores[0].index[0], axis("k")))
    columns = replace(columns, stores=(store,))
    buffers = {**graph.buffers, "s": replace(graph.buffers["s"], shape=(2, 7), strides=(7, 1))}
    outputs = (View("s", (2, 7), (7, 1)), *graph.outputs[1:])
    nodes = (graph.nodes[0], columns, *graph.nodes[2:])
    kept = replace(graph, buffers=buffers, nodes=nodes, outputs=outputs)
    assert laid_out(kept) == kept


def test_without_a_reduction_nothing_changes():
    graph = residual()
    rest = replace(graph, nodes=graph.nodes[:1] + graph.nodes[2:], outputs=graph.outputs[1:])
    assert laid_out(rest) == rest


def test_gaps_and_changed_buffers_stay():
    graph = residual(view="[2], [40], 0")
    gaps = replace(graph.buffers["y"], strides=(40, 1, 5))
    spread = replace(graph, buffers={**graph.buffers, "y": gaps})
    assert contiguous_rows(spread) == spread
    graph = residual()
    changing = replace(graph.nodes[-1], mutates=("y",))
    changed = replace(graph, nodes=(*graph.nodes[:-1], changing))
    assert contiguous_rows(changed) == changed


def test_images_with_channels_last_stay():
    graph = parse_graph("""graph g {
  buffer x : f32[2, 3, 4, 5] strides [60, 1, 15, 3] on cpu
  buffer y : f32[2, 3, 4, 5] strides [60, 1, 15, 3] on cpu
  buffer s : f32[2, 3, 4] strides [12, 4, 1] on cpu
  input x
  comp y [n:2, c:3, h:4, w:5] {
    %0 = load x[n, c, h, w] : f32
    %1 = exp %0 : f32
    store y[n, c, h, w] %1
  }
  comp s [n:2, c:3, h:4, w:5] {
    %0 = load y[n, c, h, w] : f32
    %1 = reduce.sum[w] %0 : f32
    store s[n, c, h] %1
  }
  output view(s, [2, 3, 4], [12, 4, 1], 0)
}""")
    assert contiguous_rows(graph) == graph


def test_rows_of_unknown_number_and_length():
    text = """graph g {
  symbol s0 = ["size", 0, 0] hint 4
  symbol s1 = ["size", 0, 1] hint 9
  buffer x : f32[s0, s1] strides [s1, 1] on cpu
  buffer y : f32[s1, s0] strides [1, s1] on cpu
  buffer s : f32[s1] strides [1] on cpu
  input x
  comp y [i:s1, j:s0] {
    %0 = load x[j, i] : f32
    %1 = exp %0 : f32
    store y[i, j] %1
  }
  comp s [i:s1, j:s0] {
    %0 = load y[i, j] : f32
    %1 = reduce.sum[j] %0 : f32
    store s[i] %1
  }
  output view(s, [s1], [1], 0)
}"""
    graph = parse_graph(text)
    result = contiguous_rows(graph)
    check_graph(result)
    assert result.buffers["y"].strides == (graph.buffers["y"].shape[1], 1)
    for shape in ((3, 4), (1, 5), (0, 2), (1, 1)):
        x = torch.randn(shape)
        assert torch.equal(run_graph(graph, (x,))[0], run_graph(result, (x,))[0])
