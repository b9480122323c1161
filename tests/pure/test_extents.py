"""Extents of products: wider results, sums in two parts, and what is left alone."""

from __future__ import annotations

import pytest

from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Graph, View
from torchweld.ir.parser import parse_graph
from torchweld.layout.extents import align_extents
from torchweld.targets.find import named_target

H100 = named_target("H100")
M, C, D, PITCH = 8192, 50257, 768, 50304


def head(pitch=PITCH, dtype="bf16", m=M) -> Graph:
    """y = x @ w.T, dx = y @ w, dw = y.T @ x"""
    y = f"[{pitch}, 1]"
    graph = parse_graph(f"""graph g {{
  buffer x : {dtype}[{m}, {D}] strides [{D}, 1] on cuda:0
  buffer w : {dtype}[{C}, {D}] strides [{D}, 1] on cuda:0
  buffer y : {dtype}[{m}, {C}] strides {y} on cuda:0
  buffer dx : {dtype}[{m}, {D}] strides [{D}, 1] on cuda:0
  buffer dw : {dtype}[{C}, {D}] strides [{D}, 1] on cuda:0
  input x, w
  extern y y = "aten.mm.default"(view(x, [{m}, {D}], [{D}, 1], 0), view(w, [{D}, {C}], [1, {D}], 0)) {{
  }}
  extern dx dx = "aten.mm.default"(view(y, [{m}, {C}], {y}, 0), view(w, [{C}, {D}], [{D}, 1], 0)) {{
  }}
  extern dw dw = "aten.mm.default"(view(y, [{C}, {m}], [1, {pitch}], 0), view(x, [{m}, {D}], [{D}, 1], 0)) {{
  }}
  output view(dx, [{m}, {D}], [{D}, 1], 0), view(dw, [{C}, {D}], [{D}, 1], 0)
}}""")  # noqa: E501
    check_graph(graph)
    return graph


def test_the_three_products_of_a_head():
    result = align_extents(head(), H100)
    check_graph(result)
    assert [n.name for n in result.nodes] == ["copy_y_weight", "y", "dx_rest", "dx", "dw"]
    assert result.buffers["y"].shape == (M, 50264)
    assert result.nodes[1].args[1] == View("y_weight", (D, 50264), (1, D))
    assert result.nodes[4] == head().nodes[2]


def test_the_last_terms_are_rounded_first():
    result = align_extents(head(), H100)
    rest, main = result.nodes[2:4]
    assert rest.args == (View("y", (M, 1), (PITCH, 1), 50256), View("w", (1, D), (D, 1), 50256 * D))
    assert main.target == "aten.addmm.default" and main.args[0].buffer == "dx_rest"
    assert main.args[1:] == (View("y", (M, 50256), (PITCH, 1)), View("w", (50256, D), (D, 1)))


@pytest.mark.parametrize("change", [dict(dtype="f32"), dict(m=1), dict(pitch=C)])
def test_others_stay_as_they_are(change):
    assert align_extents(head(**change), H100) == head(**change)

