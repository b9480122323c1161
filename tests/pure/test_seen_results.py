"""Products whose odd rows the caller sees: which become kernels of our own, and what that saves."""

from __future__ import annotations

import pytest
import torch

from torchweld.core.device import device_table, named_table
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Graph
from torchweld.ir.parser import parse_graph
from torchweld.kernels.extents import align_extents
from torchweld.kernels.rows import align_rows
from torchweld.kernels.seen_results import own_results
from torchweld.runtime.placement import peak_bytes
from torchweld.schedule.product_choice import choose

H100 = named_table("H100")
M, K, N = 8192, 768, 50257


def logits(m=M, k=K, n=N, dtype="bf16", then="", output="y", device="cuda:0") -> Graph:
    """y = x @ w.T"""
    graph = parse_graph(f"""graph g {{
  buffer x : {dtype}[{m}, {k}] strides [{k}, 1] on {device}
  buffer w : {dtype}[{n}, {k}] strides [{k}, 1] on {device}
  buffer y : {dtype}[{m}, {n}] strides [{n}, 1] on {device}
  buffer z : {dtype}[{m}, {k}] strides [{k}, 1] on {device}
  input x, w
  extern y y = "aten.mm.default"(view(x, [{m}, {k}], [{k}, 1], 0), view(w, [{k}, {n}], [1, {k}], 0)) {{
  }}
  {then}
  output view({output}, [{m}, {k if output == "z" else n}], [{k if output == "z" else n}, 1], 0)
}}""")  # noqa: E501
    check_graph(graph)
    return graph


BACK = f"""extern z z = "aten.mm.default"(view(y, [{M}, {N}], [{N}, 1], 0), view(w, [{N}, {K}], [{K}, 1], 0)) {{
  }}"""  # noqa: E501


def changed(graph: Graph, loose=(), table=H100, chosen=choose) -> Graph:
    result = own_results(graph, table, loose, chosen)
    check_graph(result)
    return result


@pytest.mark.parametrize("m", [16, 1024, M])
def test_logits_are_stored_where_they_belong(m):
    (node,) = changed(logits(m)).nodes
    assert isinstance(node, Comp) and node.writes == ("y",)


def test_no_second_result_is_in_memory():
    def peak(graph: Graph) -> int:
        return peak_bytes(align_extents(align_rows(graph, H100), H100), (), {}, False)

    assert peak(changed(logits())) == 2 * M * N
    assert peak(logits()) >= 4 * M * N


@pytest.mark.parametrize(
    "graph",
    [logits(n=50264), logits(dtype="f32"), logits(k=767), logits(then=BACK, output="z"),
     logits(then=BACK)],
    ids=["aligned rows", "float32", "operands in the way", "a temporary", "read by a product"],
)  # fmt: skip
def test_others_stay_library_calls(graph):
    assert changed(graph) == graph


def test_so_do_results_of_any_strides_and_what_no_template_makes():
    assert changed(logits(), loose=(0,)) == logits()
    assert changed(logits(), chosen=lambda *given: "no template") == logits()
    on_cpu = logits(device="cpu")
    assert changed(on_cpu, table=device_table("cpu")) == on_cpu


def test_the_meaning_stays():
    graph = logits(64, 24, 37)
    x, w = torch.randn(64, 24).bfloat16(), torch.randn(37, 24).bfloat16()
    (found,) = run_graph(changed(graph), [x, w])
    torch.testing.assert_close(found, x.double() @ w.double().t())
