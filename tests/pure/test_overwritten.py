"""Results of pointwise kernels in the memory of operands, and when not."""

from __future__ import annotations

import pytest
import torch

from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Graph
from torchweld.ir.parser import parse_graph
from torchweld.passes.overwritten import overwrite_operands


def program(
    load="h[i, j]", strides="[6, 1]", outputs="view(z, [4, 5], [5, 1], 0)", dtype="f32"
) -> Graph:
    """h = x @ w;  y = h * 2 (or as `load` says);  z = y @ v"""
    return parse_graph(f"""graph g {{
  buffer x : f32[4, 3] strides [3, 1] on cpu
  buffer w : f32[3, 6] strides [6, 1] on cpu
  buffer v : f32[6, 5] strides [5, 1] on cpu
  buffer h : f32[4, 6] strides [6, 1] on cpu
  buffer y : {dtype}[4, 6] strides {strides} on cpu
  buffer z : f32[4, 5] strides [5, 1] on cpu
  input x, w, v
  extern h h = "aten.mm.default"(view(x, [4, 3], [3, 1], 0), view(w, [3, 6], [6, 1], 0)) {{
  }}
  comp y [i:4, j:6] {{
    %0 = load {load} : f32
    %1 = add %0 %0 : f32
    store y[i, j] %1
  }}
  extern z z = "aten.mm.default"(view(y, [4, 6], {strides}, 0), view(v, [6, 5], [5, 1], 0)) {{
  }}
  output {outputs}
}}""")


def overwritten(graph: Graph) -> Graph:
    found = overwrite_operands(graph)
    check_graph(found)
    inputs = [torch.randn(4, 3), torch.randn(3, 6), torch.randn(6, 5)]
    for was, now in zip(run_graph(graph, inputs), run_graph(found, inputs)):
        torch.testing.assert_close(now, was, rtol=0, atol=0)
    return found


def test_a_result_takes_the_place_of_what_it_reads():
    found = overwritten(program())
    assert found.nodes[1].writes == ("h",) and "y" not in found.buffers


def test_the_operand_is_made_in_memory_that_is_returned():
    both = "view(z, [4, 5], [5, 1], 0), view(y, [4, 6], [6, 1], 0)"
    found = overwritten(program(outputs=both))
    assert found.nodes[0].writes == found.nodes[1].writes == ("y",)
    assert "h" not in found.buffers


def test_a_convolution_makes_memory_of_its_own():
    graph = parse_graph("""graph g {
  buffer x : f32[2, 3, 5] strides [15, 5, 1] on cpu
  buffer w : f32[4, 3, 3] strides [9, 3, 1] on cpu
  buffer h : f32[2, 4, 3] strides [12, 3, 1] on cpu
  buffer y : f32[2, 4, 3] strides [12, 3, 1] on cpu
  input x, w
  extern h h = "aten.convolution.default"(view(x, [2, 3, 5], [15, 5, 1], 0), \
view(w, [4, 3, 3], [9, 3, 1], 0), None, [1], [0], [1], False, [0], 1) {
  }
  comp y [i:2, c:4, p:3] {
    %0 = load h[i, c, p] : f32
    %1 = add %0 %0 : f32
    store y[i, c, p] %1
  }
  output view(y, [2, 4, 3], [12, 3, 1], 0)
}""")  # fmt: skip
    found = overwrite_operands(graph)
    check_graph(found)
    assert found.nodes[0].writes == found.nodes[1].reads == found.nodes[1].writes == ("y",)


@pytest.mark.parametrize(
    "graph",
    [
        program(load="h[3 - i, j]"),  # another point's element
        program(strides="[1, 4]"),  # another layout
        program(outputs="view(z, [4, 5], [5, 1], 0), view(h, [4, 6], [6, 1], 0)"),  # lives on
    ],
    ids=["moved", "layout", "returned"],
)
def test_other_results_keep_their_own(graph):
    assert overwritten(graph) == graph


def test_what_the_caller_gave_is_left_alone():
    graph = parse_graph("""graph g {
  buffer x : f32[4] strides [1] on cpu
  buffer y : f32[4] strides [1] on cpu
  input x
  comp y [i:4] {
    %0 = load x[i] : f32
    %1 = exp %0 : f32
    store y[i] %1
  }
  output view(y, [4], [1], 0)
}""")
    assert overwrite_operands(graph) == graph


def test_a_chain_ends_in_one_buffer():
    graph = parse_graph("""graph g {
  buffer x : f32[4] strides [1] on cpu
  buffer a : f32[4] strides [1] on cpu
  buffer b : f32[4] strides [1] on cpu
  buffer c : f32[4] strides [1] on cpu
  input x
  comp a [i:4] {
    %0 = load x[i] : f32
    store a[i] %0
  }
  comp b [i:4] {
    %0 = load a[i] : f32
    %1 = exp %0 : f32
    store b[i] %1
  }
  comp c [i:4] {
    %0 = load b[i] : f32
    %1 = exp %0 : f32
    store c[i] %1
  }
  output view(c, [4], [1], 0)
}""")
    found = overwrite_operands(graph)
    check_graph(found)
    assert {n for n in found.buffers} == {"x", "c"}
    x = torch.randn(4)
    torch.testing.assert_close(run_graph(found, [x])[0], x.double().exp().exp())


def whole(name: str) -> str:
    return f"view({name}, [4, 6], [6, 1], 0)"


ZEROS = "comp z [i:4, j:6] {\n %0 = const 0.0 : f32\n store z[i, j] %0\n }"


def changed(source=ZEROS, inputs="x, at"):
    """y = scatter_add(z, 0, at, x), of zeros unless `source` says otherwise."""
    return parse_graph(f"""graph g {{
  buffer x : f32[4, 6] strides [6, 1] on cpu
  buffer at : i64[4, 6] strides [6, 1] on cpu
  buffer z : f32[4, 6] strides [6, 1] on cpu
  buffer y : f32[4, 6] strides [6, 1] on cpu
  input {inputs}
  {source}
  extern y y = "aten.scatter_add.default"({whole("z")}, 0, {whole("at")}, {whole("x")}) {{
  }}
  output view(y, [4, 6], [6, 1], 0)
}}""")  # fmt: skip


def test_a_call_that_changes_some_elements_does_so_in_place():
    graph = changed()
    found = overwrite_operands(graph)
    check_graph(found)
    assert found.nodes[1].target == "aten.scatter_add_.default"
    assert found.nodes[0].writes == found.nodes[1].mutates == ("y",) and "z" not in found.buffers
    inputs = [torch.randn(4, 6), torch.randint(4, (4, 6))]
    assert torch.equal(run_graph(graph, inputs)[0], run_graph(found, inputs)[0])


def test_what_the_caller_gave_is_not_changed():
    assert overwrite_operands(changed("", "x, at, z")) == changed("", "x, at, z")


def test_parts_that_are_stored_apart_keep_their_own():
    """The first part is stored where the others' operand lies."""
    text = """graph g {
  buffer x : f32[4, 6] strides [6, 1] on cpu
  buffer h : f32[2, 6] strides [6, 1] on cpu
  buffer y : f32[2, 6] strides [6, 1] on cpu
  input x
  comp h [i:2, j:6] {
    %0 = load x[i, j] : f32
    %1 = add %0 %0 : f32
    store h[i, j] %1
  }
  comp y [j:6] {
    %0 = load h[0, j] : f32
    %1 = exp %0 : f32
    store y[0, j] %0
    store y[1, j] %1
  }
  output view(y, [2, 6], [6, 1], 0)
}"""
    found = overwrite_operands(parse_graph(text))
    check_graph(found)
    assert set(found.nodes[1].writes) == {"y"}


def scattered(more: str = "", load: str = "v[k]") -> Graph:
    """z = x * 2;  y = z, to which v is added at i"""
    return parse_graph(f"""graph g {{
  buffer x : f32[4] strides [1] on cpu
  buffer i : i64[6] strides [1] on cpu
  buffer v : f32[6] strides [1] on cpu
  buffer z : f32[4] strides [1] on cpu
  buffer y : f32[4] strides [1] on cpu
  input x, i, v
  comp z [j:4] {{
    %0 = load x[j] : f32
    %1 = add %0 %0 : f32
    store z[j] %1
  }}
  comp y [k:6] {{
    %0 = load i[k] : i64
    %1 = load {load} : f32
    store.add y[%0] %1 init copy z
  }}
  output view(y, [4], [1], 0){more}
}}""")


def test_a_scatter_goes_on_in_the_memory_of_what_it_begins_as():
    before = scattered()
    after = overwrite_operands(before)
    check_graph(after)
    assert after.nodes[0].writes == after.nodes[1].writes == ("y",) and "z" not in after.buffers
    inputs = [torch.randn(4), torch.tensor([3, 0, 3, 3, 1, 0]), torch.randn(6)]
    for was, now in zip(run_graph(before, inputs), run_graph(after, inputs)):
        torch.testing.assert_close(now, was, rtol=0, atol=0)


@pytest.mark.parametrize("kept", [
    scattered(", view(z, [4], [1], 0)"), scattered(load="z[0]"),
], ids=["returned", "read"])  # fmt: skip
def test_what_a_scatter_begins_as_is_kept_for_others(kept):
    assert overwrite_operands(kept) == kept
