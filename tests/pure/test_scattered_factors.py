"""Factors of batched products whose elements lie apart: which are written otherwise, which copied,
and that the graph means the same."""

from __future__ import annotations

import pytest
import torch

from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern, Graph, View
from torchweld.ir.parser import parse_graph
from torchweld.layout.factors import factors_together

K, I, J, C = 5, 7, 3, 9  # one product for each of C, which is innermost: rows I, depth K, columns J


def pairs(more: str = "", output: str = "", inner: int = C) -> Graph:
    """t = 2 x; p[c] = t[:, :, c]^T y[:, :, c]"""
    graph = parse_graph(f"""graph g {{
  buffer x : f32[{K}, {I}, {inner}] strides [{I * inner}, {inner}, 1] on cpu
  buffer y : f32[{K}, {J}, {inner}] strides [{J * inner}, {inner}, 1] on cpu
  buffer t : f32[{K}, {I}, {inner}] strides [{I * inner}, {inner}, 1] on cpu
  buffer p : f32[{inner}, {I}, {J}] strides [{I * J}, {J}, 1] on cpu
  buffer q : f32[{inner}, {I}, {J}] strides [{I * J}, {J}, 1] on cpu
  buffer u : f32[{K}, {I * inner}] strides [{I * inner}, 1] on cpu
  input x, y
  comp t [a:{K}, b:{I}, c:{inner}] {{
    %0 = load x[a, b, c] : f32
    %1 = add %0 %0 : f32
    store t[a, b, c] %1
  }}
  extern p p = "aten.bmm.default"(view(t, [{inner}, {I}, {K}], [1, {inner}, {I * inner}], 0), view(y, [{inner}, {K}, {J}], [1, {J * inner}, {inner}], 0)) {{
  }}
{more}
  output view(p, [{inner}, {I}, {J}], [{I * J}, {J}, 1], 0){output}
}}""")  # noqa: E501
    check_graph(graph)
    return graph


def together(graph: Graph, loose=(), inner: int = C) -> Graph:
    """The result, which computes the same numbers."""
    result = factors_together(graph, loose)
    check_graph(result)
    inputs = torch.randn(K, I, inner), torch.randn(K, J, inner)
    for a, b in zip(run_graph(graph, inputs), run_graph(result, inputs)):
        assert a.dtype == torch.float64 and torch.equal(a, b) and a.shape == b.shape
    return result


def factors(graph: Graph, name: str = "p") -> tuple[View, View]:
    return next(n for n in graph.nodes if n.name == name).args


def copies(graph: Graph) -> list[str]:
    return [n.name for n in graph.nodes if isinstance(n, Comp) and n.name != "t"]


def test_a_temporary_is_written_with_the_products_outermost_and_an_input_is_copied():
    result = together(pairs())
    left, right = factors(result)
    assert left.buffer == "t" and left.strides == (K * I, 1, I)
    assert result.buffers["t"].strides == (I, 1, K * I)
    assert right.buffer == "p_right" and right.strides == (K * J, J, 1)
    assert copies(result) == ["p_right"]


@pytest.mark.parametrize("inner", [1, 4, 7])
def test_elements_that_share_a_sector_stay(inner):
    """Eight numbers of float32 are 32 bytes."""
    graph = pairs(inner=inner)
    assert factors_together(graph) == graph
    assert factors_together(pairs(inner=8)) != pairs(inner=8)


WHOLE = f"[{K}, {I}, {C}], [{I * C}, {C}, 1], 0"


@pytest.mark.parametrize("loose", [(), (1,)], ids=["fixed", "loose"])
def test_a_result_is_copied_unless_its_strides_are_free(loose):
    result = together(pairs(output=f", view(t, {WHOLE})"), loose)
    assert copies(result) == ([] if loose else ["p_left"]) + ["p_right"]
    assert result.buffers["t"].strides == ((I, 1, K * I) if loose else (I * C, C, 1))


def test_what_a_call_reads_across_dimensions_is_copied():
    flat = f"view(t, [{K}, {I * C}], [{I * C}, 1], 0)"
    result = together(pairs(f'  extern u u = "aten.neg.default"({flat}) {{\n  }}'))
    assert copies(result) == ["p_left", "p_right"]


def test_two_products_share_a_copy():
    again = f'"aten.bmm.default"(view(t, [{C}, {I}, {K}], [1, {C}, {I * C}], 0), view(y, [{C}, {K}, {J}], [1, {J * C}, {C}], 0))'  # noqa: E501
    result = together(pairs(f"  extern q q = {again} {{\n  }}"))
    assert copies(result) == ["p_right"]
    assert factors(result, "q") == factors(result)


def test_vectors_and_matrices_in_rows_stay():
    graph = parse_graph(f"""graph g {{
  buffer x : f32[{K}, {C}] strides [{C}, 1] on cpu
  buffer y : f32[{C}, {K}, {J}] strides [{K * J}, {J}, 1] on cpu
  buffer p : f32[{C}, 1, {J}] strides [{J}, {J}, 1] on cpu
  input x, y
  extern p p = "aten.bmm.default"(view(x, [{C}, 1, {K}], [1, 1, {C}], 0), view(y, [{C}, {K}, {J}], [{K * J}, {J}, 1], 0)) {{
  }}
  output view(p, [{C}, 1, {J}], [{J}, {J}, 1], 0)
}}""")  # noqa: E501
    check_graph(graph)
    assert factors_together(graph) == graph
    assert all(isinstance(n, Extern) for n in graph.nodes)
