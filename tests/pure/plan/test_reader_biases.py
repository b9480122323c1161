"""Biases of products that stay library calls, added where the result is read."""

from __future__ import annotations

import pytest
import torch

from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Graph
from torchweld.ir.parser import parse_graph
from torchweld.plan.decisions import Plan
from torchweld.plan.reader_biases import biases_in_readers


def program(bias="[6], [1], 0", load="h[i, j]", outputs="", dtype="f32", before="") -> Graph:
    return parse_graph(f"""graph g {{
  buffer b : {dtype}[12] strides [1] on cpu
  buffer x : {dtype}[4, 3] strides [3, 1] on cpu
  buffer w : {dtype}[3, 6] strides [6, 1] on cpu
  buffer h : {dtype}[4, 6] strides [6, 1] on cpu
  buffer y : f32[4] strides [1] on cpu
  input b, x, w
  extern h h = "aten.addmm.default"(view(b, {bias}), view(x, [4, 3], [3, 1], 0), view(w, [3, 6], [6, 1], 0)) {{
  }}
  comp y [i:4, j:6] {{
    {before}
    %0 = load {load} : {dtype}
    %1 = cast %0 : f32
    %2 = mul %1 %1 : f32
    %3 = reduce.sum[j] %2 : f32
    store y[i] %3
  }}
  output view(y, [4], [1], 0){outputs}
}}""")  # noqa: E501


def test_the_reader_adds_the_bias():
    graph = program()
    found = biases_in_readers(Plan(graph, ()), ["h"]).graph
    check_graph(found)
    assert found.nodes[0].target == "aten.mm.default" and "b" in found.nodes[1].reads
    inputs = [torch.randn(12), torch.randn(4, 3), torch.randn(3, 6)]
    torch.testing.assert_close(run_graph(found, inputs), run_graph(graph, inputs))


@pytest.mark.parametrize(
    "graph",
    [
        program(bias="[6], [2], 0"),
        program(bias="[6], [1], 6"),
        program(bias="[6], [0], 0"),
        program(outputs=", view(h, [4, 6], [6, 1], 0)"),
        program(dtype="bf16"),
    ],
    ids=["strided", "offset", "broadcast", "returned", "16 bits"],
)
def test_other_calls_keep_it(graph):
    assert biases_in_readers(Plan(graph, ()), ["h"]).graph == graph


def test_only_the_calls_that_are_named():
    assert biases_in_readers(Plan(program(), ()), []).graph == program()
