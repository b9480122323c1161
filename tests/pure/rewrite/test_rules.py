"""Each rule on a small graph: what goes, what stays, and that the outputs keep their bits."""

from dataclasses import replace

import pytest
import torch

from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Extern, Graph, View
from torchweld.ir.parser import parse_graph
from torchweld.rewrite.apply import rewrite
from torchweld.rewrite.rules import RULES


def comp(name, source, target, op="exp", load="i, j", store="i, j", axes="i:4, j:6"):
    calculation = (
        f"%1 = {op} %0 : f32\n store {target}[{store}] %1" if op else f"store {target}[{store}] %0"
    )
    return f"comp {name} [{axes}] {{\n %0 = load {source}[{load}] : f32\n {calculation}\n}}\n"


def extern(name, source, target, call="aten.relu.default", mutates=""):
    view = f"view({source}, [4, 6], [6, 1], 0)"
    return f'extern {name} {target} = "{call}"({view}){mutates} {{\n}}\n'


def graph(nodes, outputs, **layouts) -> Graph:
    """Buffers x (the input), a to e of f32[4, 6]; `layouts` gives others as "shape strides"."""
    plain = dict.fromkeys("xabcde", "[4, 6] strides [6, 1]") | layouts
    buffers = "\n".join(f"buffer {n} : f32{layout} on cpu" for n, layout in plain.items())
    views = ", ".join(f"view({o}, [4, 6], [6, 1], 0)" for o in outputs)
    found = parse_graph(f"graph g {{\n{buffers}\ninput x\n{nodes}output {views}\n}}")
    used = {b for n in found.nodes for b in (*n.reads, *n.writes)} | {"x"}
    return replace(found, buffers={n: b for n, b in found.buffers.items() if n in used})


def names_after(before: Graph) -> list[str]:
    after = rewrite(before)
    check_graph(after)
    x = torch.randn(4, 6)
    for expected, got in zip(
        run_graph(before, (x,), exact=False), run_graph(after, (x,), exact=False)
    ):
        assert torch.equal(expected, got)
    return [n.name for n in after.nodes]


def test_rules_have_examples():
    assert all(r.before and r.after and r.apply.__doc__ for r in RULES)
    assert len({r.name for r in RULES}) == len(RULES)


def test_equal_comps_are_shared_whatever_their_axes_are_called():
    nodes = comp("one", "x", "a") + comp(
        "two", "x", "b", load="p, q", store="p, q", axes="p:4, q:6"
    )
    nodes += comp("three", "a", "c", "neg") + comp("four", "b", "d", "neg")
    nodes += comp("five", "d", "e")
    assert names_after(graph(nodes, "ce")) == ["one", "three", "five"]


def test_different_comps_stay():
    nodes = comp("one", "x", "a") + comp("two", "x", "b", "neg")
    assert names_after(graph(nodes, "ab")) == ["one", "two"]


def test_equal_comps_into_another_layout_stay():
    nodes = comp("one", "x", "a") + comp("two", "x", "b") + comp("end", "b", "c", "neg")
    before = graph(nodes, "ac", b="[4, 6] strides [1, 4]")
    assert names_after(before) == ["one", "two", "end"]


def test_two_outputs_stay_two_tensors():
    nodes = comp("one", "x", "a") + comp("two", "x", "b") + comp("three", "x", "c")
    nodes += comp("four", "c", "d", "neg")
    assert names_after(graph(nodes, "abd")) == ["one", "two", "four"]


def test_two_outputs_stay_two_tensors_also_through_a_third():
    nodes = comp("one", "x", "a") + comp("two", "x", "b") + comp("three", "x", "c")
    nodes += comp("four", "a", "d", "neg")
    after = rewrite(graph(nodes, "bcd"))
    assert len({v.buffer for v in after.outputs}) == 3


def test_pure_calls_are_shared():
    nodes = extern("one", "x", "a") + extern("two", "x", "b") + comp("end", "b", "c")
    assert names_after(graph(nodes, "ac")) == ["one", "end"]


@pytest.mark.parametrize("call", ["aten.rand_like.default", "mylib.effect.default"])
def test_random_and_unknown_calls_are_neither_shared_nor_dropped(call):
    nodes = extern("one", "x", "a", call) + extern("two", "x", "b", call) + comp("end", "x", "c")
    after = rewrite(graph(nodes, "c"))
    assert [n.name for n in after.nodes] == ["one", "two", "end"]


def test_what_changes_in_place_is_not_shared():
    nodes = comp("one", "x", "a") + extern("change", "a", "_", "mylib.change.default", " mutates a")
    nodes += comp("two", "x", "b") + comp("three", "a", "c", "neg")
    after = rewrite(graph(nodes, "bc"))
    assert [n.name for n in after.nodes] == ["one", "change", "two", "three"]


def test_dead_nodes_go():
    nodes = comp("dead", "x", "a", "neg") + extern("dead_call", "a", "b") + comp("end", "x", "c")
    after = rewrite(graph(nodes, "c"))
    assert [n.name for n in after.nodes] == ["end"]
    assert set(after.buffers) == {"x", "c"}


def test_a_copy_in_the_same_layout_goes():
    nodes = comp("make", "x", "a") + comp("copy", "a", "b", None) + extern("call", "b", "c")
    assert names_after(graph(nodes, "c")) == ["make", "call"]


def test_a_transposition_in_the_same_memory_goes():
    nodes = comp("make", "x", "a") + comp("copy", "a", "b", None, "i, j", "j, i")
    nodes += comp("end", "b", "c", "neg", "j, i")
    before = graph(nodes, "c", b="[6, 4] strides [1, 6]")
    assert names_after(before) == ["make", "end"]


def test_a_transposition_that_moves_stays():
    nodes = comp("make", "x", "a") + comp("copy", "a", "b", None, "i, j", "j, i")
    nodes += comp("end", "b", "c", "neg", "j, i")
    before = graph(nodes, "c", b="[6, 4] strides [4, 1]")
    assert names_after(before) == ["make", "copy", "end"]


@pytest.mark.parametrize(
    "nodes, outputs, kept",
    [
        (comp("copy", "x", "b", None), "b", ["copy"]),  # an output must not be the input itself
        (comp("make", "x", "a") + comp("copy", "a", "b", None), "ab", ["make", "copy"]),
        (comp("make", "x", "a") + comp("copy", "a", "b", None), "b", ["make"]),
        (comp("copy", "x", "b", None) + comp("end", "b", "c"), "c", ["end"]),
        (
            comp("make", "x", "a") + comp("copy", "a", "b", None) + comp("again", "a", "c", None),
            "bc",
            ["make", "again"],
        ),
    ],
)
def test_copies_to_outputs(nodes, outputs, kept):
    assert names_after(graph(nodes, outputs)) == kept


def test_indirect_reads_of_a_copy():
    gather = """comp gather [i:4, j:6] {
      %0 = const 2 : i64
      %1 = index j : i64
      %2 = remainder %1 %0 : i64
      %3 = load b[i, %2] : f32
      store c[i, j] %3
    }
    """
    nodes = comp("make", "x", "a") + comp("copy", "a", "b", None) + gather
    assert names_after(graph(nodes, "c")) == ["make", "gather"]


def test_bodies_are_simplified():
    nodes = comp("end", "x", "a", "neg").replace(
        "%1 = neg %0 : f32", "%1 = const 1.0 : f32\n %2 = mul %0 %1 : f32"
    )
    nodes = nodes.replace("store a[i, j] %1", "store a[i, j] %2")
    (end,) = rewrite(graph(nodes, "a")).nodes
    assert len(end.body) == 1


def test_views_in_outputs_follow():
    nodes = comp("make", "x", "a") + comp("copy", "a", "b", None)
    after = rewrite(graph(nodes, "b"))
    assert after.outputs == (View("a", (4, 6), (6, 1), 0),)


SCAN = """comp scan [i:4, j:6] {
 %0 = load x[i, j] : f32
 %1 = scan.sum[j] %0 : f32
 store a[i, j] %1
}
"""


def test_what_reads_a_scan_backwards_writes_backwards():
    """So that it joins the kernel of the scan; what reads anything else stays."""
    flips = [comp(f"of_{n}", n, to, None, load="i, -1*j+5") for n, to in (("a", "b"), ("x", "c"))]
    before = graph(SCAN + "".join(flips), ["b", "c"])
    assert names_after(before) == ["scan", "of_a", "of_x"]
    of_a, of_x = rewrite(before).nodes[1:]
    assert [repr(e) for e in of_a.body[0].index] == ["i", "j"]
    assert [repr(e) for e in of_a.stores[0].index] == ["i", "(-1)*j+5"]
    assert of_x == before.nodes[2]


def test_what_stores_no_elements_reads_none():
    """A kernel loads before its loops what is the same at all of their points: x may not exist."""
    text = """graph g {
      buffer x : f32[0, 4] strides [4, 1] on cpu
      buffer y : f32[4, 0] strides [0, 1] on cpu
      buffer z : f32[4] strides [1] on cpu
      input x
      comp a [i:4, j:0] {
        %0 = load x[0, 0] : f32
        %1 = exp %0 : f32
        store y[i, j] %1
      }
      comp b [i:4, j:0] {
        %0 = load x[0, 0] : f32
        %1 = reduce.sum[j] %0 : f32
        store z[i] %1
      }
      output view(y, [4, 0], [0, 1], 0), view(z, [4], [1], 0)
    }"""
    after = rewrite(parse_graph(text))
    check_graph(after)
    assert [n.reads for n in after.nodes] == [(), ()]
    y, z = run_graph(after, (torch.empty(0, 4),), exact=False)
    assert y.shape == (4, 0) and torch.equal(z, torch.zeros(4))


def made_on_the_cpu(reads="exp", view="[8], [1], 0", device="cuda:0") -> Graph:
    """A copy to `device` of part of what is made from nothing on the CPU."""
    names = ("arange", "mul", "exp")
    buffers = "\n".join(f"buffer {n} : f32[8] strides [1] on cpu" for n in names)
    call = f'extern copy copy = "aten._to_copy.default"(view({reads}, {view})) {{\n}}\n'
    return parse_graph(f"""graph g {{
      {buffers}
      buffer copy : f64[8] strides [1] on {device}
      buffer x : f64[8] strides [1] on {device}
      buffer y : f64[8] strides [1] on {device}
      input x
      comp arange [i0:8] {{
        %0 = index i0 : i64
        %1 = cast %0 : f32
        store arange[i0] %1
      }}
      comp mul [i0:8] {{
        %0 = load arange[i0] : f32
        %1 = mul %0 %0 : f32
        store mul[i0] %1
      }}
      comp exp [i0:8] {{
        %0 = load mul[i0] : f32
        %1 = load arange[i0] : f32
        %2 = add %0 %1 : f32
        store exp[i0] %2
      }}
      {call}
      comp y [i0:8] {{
        %0 = load copy[i0] : f64
        %1 = load x[i0] : f64
        %2 = add %0 %1 : f64
        store y[i0] %2
      }}
      output view(y, [8], [1], 0)
    }}""")


def test_what_is_made_from_nothing_is_made_where_it_is_used():
    before = made_on_the_cpu()
    after = rewrite(before)
    check_graph(after)
    assert {b.device for b in after.buffers.values()} == {"cuda:0"}
    assert not any(isinstance(n, Extern) for n in after.nodes)
    x = torch.randn(8, dtype=torch.float64)
    expected, got = (run_graph(on_the_cpu(g), (x,))[0] for g in (before, after))
    assert torch.equal(expected, got)


def on_the_cpu(graph: Graph) -> Graph:
    buffers = {name: replace(b, device="cpu") for name, b in graph.buffers.items()}
    return replace(graph, buffers=buffers)


@pytest.mark.parametrize("how", [
    dict(device="cpu"), dict(view="[8], [0], 3"), dict(reads="x", device="cuda:0"),
])  # fmt: skip
def test_other_copies_stay(how):
    assert any(isinstance(n, Extern) for n in rewrite(made_on_the_cpu(**how)).nodes)
