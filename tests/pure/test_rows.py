"""Row strides of products: what is padded, what is copied, and what is left alone."""

from __future__ import annotations

import pytest

from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Comp, Graph, View
from torchweld.ir.parser import parse_graph
from torchweld.layout.rows import align_rows, align_temporaries
from torchweld.targets.find import named_target

H100 = named_target("H100")
M, K, N = 8192, 768, 50257
PITCH = 50304  # 50257 bf16 in whole lines of 128 bytes
BOTH = ("z", "y")


def product(m=M, k=K, n=N, dtype="bf16", target="mm", outputs=("z",), turned=False) -> Graph:
    """v = w; y = x @ v (+ b); z = y. `turned`: the lines of v lie along the depth."""
    held = f"[{n}, {k}] strides [{k}, 1]" if turned else f"[{k}, {n}] strides [{n}, 1]"
    right = f"[1, {k}]" if turned else f"[{n}, 1]"
    axes = f"i:{n}, j:{k}" if turned else f"i:{k}, j:{n}"
    bias = f"view(b, [{n}], [1], 0), " if target == "addmm" else ""
    half = f"[2, {m // 2}, {n}], [{m // 2 * n}, {n}, 1], 0"
    results = ", ".join(f"view({o}, {half})" for o in outputs)
    args = f"{bias}view(x, [{m}, {k}], [{k}, 1], 0), view(v, [{k}, {n}], {right}, 0)"
    graph = parse_graph(f"""graph g {{
  buffer x : {dtype}[{m}, {k}] strides [{k}, 1] on cuda:0
  buffer w : {dtype}{held} on cuda:0
  buffer b : {dtype}[{n}] strides [1] on cuda:0
  buffer v : {dtype}{held} on cuda:0
  buffer y : {dtype}[{m}, {n}] strides [{n}, 1] on cuda:0
  buffer z : {dtype}[{m}, {n}] strides [{n}, 1] on cuda:0
  input x, w, b
  comp v [{axes}] {{
    %0 = load w[i, j] : {dtype}
    store v[i, j] %0
  }}
  extern y y = "aten.{target}.default"({args}) {{
  }}
  comp z [i:{m}, j:{n}] {{
    %0 = load y[i, j] : {dtype}
    store z[i, j] %0
  }}
  output {results}
}}""")
    check_graph(graph)
    return graph


def aligned(graph: Graph, loose=(), table=H100) -> Graph:
    result = align_rows(graph, table, loose)
    check_graph(result)
    return result


def stride(graph: Graph, name: str) -> int:
    return graph.buffers[name].strides[0]


def comps(graph: Graph) -> list[str]:
    return [n.name for n in graph.nodes if isinstance(n, Comp)]


def test_temporaries_of_a_product_get_longer_rows():
    graph = aligned(product())
    assert stride(graph, "v") == stride(graph, "y") == PITCH
    assert stride(graph, "z") == N and comps(graph) == ["v", "z"]
    assert graph.nodes[1].args[1] == View("v", (K, N), (PITCH, 1))


@pytest.mark.parametrize(("n", "pitch"), [(101, 104), (1001, 1008), (31, 31), (768, 768)])
def test_short_rows_are_padded_to_16_bytes_or_left(n, pitch):
    graph = aligned(product(64, 64, n))
    assert stride(graph, "y") == pitch


def test_what_only_the_backward_sees_may_have_any_strides():
    graph = aligned(product(outputs=BOTH), loose=(1,))
    assert stride(graph, "y") == PITCH and comps(graph) == ["v", "z"]
    assert graph.outputs[1].strides == (M // 2 * PITCH, PITCH, 1)
    assert graph.outputs[0].strides == (M // 2 * N, N, 1)


def test_what_the_user_sees_is_copied_where_the_product_is_large():
    given = product(outputs=BOTH, turned=True)
    graph = aligned(given)
    assert stride(graph, "y") == N and stride(graph, "y_rows") == PITCH
    assert graph.outputs == given.outputs
    assert comps(graph) == ["v", "copy_y", "z"] and graph.nodes[1].outputs == ("y_rows",)


def test_a_small_product_is_not_worth_a_copy():
    graph = product(64, 64, 1001, outputs=BOTH)
    assert aligned(graph) == graph


def gradient_of_weight(columns: int) -> Graph:
    """y = v.T @ x, of the caller's v, whose rows are not aligned, and x, with `columns` columns."""
    return parse_graph(f"""graph g {{
  buffer v : bf16[{M}, {N}] strides [{N}, 1] on cuda:0
  buffer x : bf16[{M}, {columns}] strides [{columns}, 1] on cuda:0
  buffer y : bf16[{N}, {columns}] strides [{columns}, 1] on cuda:0
  input v, x
  extern y y = "aten.mm.default"(view(v, [{N}, {M}], [1, {N}], 0), view(x, [{M}, {columns}], [{columns}, 1], 0)) {{
  }}
  output view(y, [{N}, {columns}], [{columns}, 1], 0)
}}""")  # noqa: E501


def test_an_input_is_copied_before_the_product():
    result = aligned(gradient_of_weight(K))
    assert comps(result) == ["copy_v_rows"] and stride(result, "v") == N
    assert result.nodes[1].args[0] == View("v_rows", (N, M), (1, PITCH))


def test_no_copy_is_made_where_the_librarys_lines_stay_odd():
    """128 x 63 with a depth of 262144 takes an H100 84 us, and 85 with rows 64 elements apart."""
    graph = gradient_of_weight(767)
    assert aligned(graph) == graph


def test_a_bias_that_would_have_to_be_written_first_counts():
    assert stride(aligned(product(64, 64, 1001, target="addmm")), "y") == 1001
    large = align_temporaries(product(target="addmm"), H100)
    assert stride(large, "y") == PITCH


@pytest.mark.parametrize("change", [dict(dtype="f32"), dict(n=50304)])
def test_others_stay_as_they_are(change):
    graph = product(**change)
    assert aligned(graph) == graph



def test_a_window_across_rows_keeps_the_buffer_as_it_is():
    graph = product()
    flat = View("y", (M * N,), (1,))
    seen = Graph(graph.name, (), graph.buffers, graph.nodes, graph.inputs, (*graph.outputs, flat))
    assert stride(aligned(seen, loose=(1,)), "y") == N


DYNAMIC = """graph g {
  symbol s0 = ["size", 0, 0] hint 8192
  buffer x : bf16[s0, 768] strides [768, 1] on cuda:0
  buffer w : bf16[768, 50257] strides [1, 768] on cuda:0
  buffer y : bf16[s0, 50257] strides [50257, 1] on cuda:0
  buffer z : bf16[s0, 50257] strides [50257, 1] on cuda:0
  input x, w
  extern y y = "aten.mm.default"(view(x, [s0, 768], [768, 1], 0), view(w, [768, 50257], [1, 768], 0)) {
  }
  comp z [i:s0, j:50257] {
    %0 = load y[i, j] : bf16
    store z[i, j] %0
  }
  output view(z, [s0, 50257], [50257, 1], 0), view(y, [s0, 50257], [50257, 1], 0)
}"""  # noqa: E501


def test_rows_without_a_known_number_are_padded_but_not_where_the_backward_would_see_it():
    graph = parse_graph(DYNAMIC)
    inside = Graph("g", graph.symbols, graph.buffers, graph.nodes, graph.inputs, graph.outputs[:1])
    assert stride(aligned(inside), "y") == PITCH
    kept = aligned(graph, loose=(1,))
    assert stride(kept, "y") == N and stride(kept, "y_rows") == PITCH


def test_batches_of_matrices_keep_their_order():
    graph = parse_graph("""graph g {
  buffer a : bf16[6, 64, 32] strides [2048, 32, 1] on cuda:0
  buffer b : bf16[6, 32, 197] strides [6304, 1, 32] on cuda:0
  buffer y : bf16[6, 64, 197] strides [12608, 197, 1] on cuda:0
  buffer z : bf16[2, 64, 32] strides [2048, 32, 1] on cuda:0
  input a, b
  extern y y = "aten.bmm.default"(view(a, [6, 64, 32], [2048, 32, 1], 0), view(b, [6, 32, 197], [6304, 1, 32], 0)) {
  }
  extern z z = "aten.bmm.default"(view(y, [2, 64, 197], [37824, 197, 1], 12608), view(b, [2, 197, 32], [6304, 32, 1], 0)) {
  }
  output view(z, [2, 64, 32], [2048, 32, 1], 0)
}""")  # noqa: E501
    result = aligned(graph)
    assert result.buffers["y"].strides == (64 * 200, 200, 1)
    assert result.nodes[1].args[0] == View("y", (2, 64, 197), (3 * 64 * 200, 200, 1), 64 * 200)


TOKENS = """graph g {
  buffer x : bf16[64, 21, 3] strides [63, 3, 1] on cuda:0
  buffer v : bf16[64, 21, 3] strides [63, 3, 1] on cuda:0
  buffer w : bf16[128, 63] strides [63, 1] on cuda:0
  buffer y : bf16[64, 128] strides [128, 1] on cuda:0
  buffer u : bf16[128, 195] strides [195, 1] on cuda:0
  buffer z : bf16[64, 195] strides [195, 1] on cuda:0
  buffer o : bf16[64, 195] strides [195, 1] on cuda:0
  input x, w, u
  comp v [i:64, j:21, k:3] {
    %0 = load x[i, j, k] : bf16
    store v[i, j, k] %0
  }
  extern y y = "aten.mm.default"(view(v, [64, 63], [63, 1], 0), view(w, [63, 128], [1, 63], 0)) {
  }
  extern z z = "aten.mm.default"(view(y, [64, 128], [128, 1], 0), view(u, [128, 195], [195, 1], 0)) {
  }
  comp o [i:64, j:195] {
    %0 = load z[i, j] : bf16
    store o[i, j] %0
  }
  output view(o, [64, 195], [195, 1], 0), view(v, [64, 63], [63, 1], 0)
}"""  # noqa: E501


def test_temporaries_are_aligned_before_anyone_makes_the_product():
    """Whatever the rest of the product is like, as long as it takes no copies."""
    graph = align_temporaries(parse_graph(TOKENS), H100, frozenset({1}))
    check_graph(graph)
    assert comps(graph) == ["v", "o"]
    assert graph.buffers["v"].strides == (64, 3, 1) and stride(graph, "z") == 200
    assert graph.outputs[1].strides == (64, 1) and stride(graph, "o") == 195
    assert [stride(graph, n) for n in "wu"] == [63, 195]


def test_temporaries_that_others_see_stay_as_they_are():
    assert align_temporaries(parse_graph(TOKENS), H100).buffers["v"].strides == (63, 3, 1)
    assert align_temporaries(product(dtype="f32"), H100) == product(dtype="f32")


@pytest.mark.parametrize(("m", "k", "pitch"), [(64, 16, 1001), (8192, K, 1008)])
def test_a_bias_that_a_call_would_write_first_must_be_worth_it(m, k, pitch):
    assert stride(align_temporaries(product(m, k, 1001, target="addmm"), H100), "y") == pitch
