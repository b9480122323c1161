"""Nodes in the order that needs least memory, and temporaries that leave the arena."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchweld.codegen.source import KernelBundle, KernelSource
from torchweld.ir.parser import parse_graph
from torchweld.runtime.budget import fullest, own_tensors
from torchweld.runtime.load import first_in_turn
from torchweld.runtime.memory import ALIGNMENT, Lifetime, aligned, assign
from torchweld.runtime.order import by_memory
from torchweld.runtime.placement import buffer_bytes, peak_bytes


@st.composite
def lifetimes(draw, prefix: str):
    firsts = draw(st.lists(st.integers(0, 12), max_size=12))
    return [
        Lifetime(f"{prefix}{n}", draw(st.integers(0, 90_000)), first, draw(st.integers(first, 13)))
        for n, first in enumerate(firsts)
    ]


@given(lifetimes("t"), lifetimes("s"), lifetimes("o"))
def test_the_peak_is_that_of_tensors_freed_one_by_one(temporaries, scratch, others):
    own = own_tensors(temporaries, scratch, others)
    inside = [v for v in temporaries if v.name not in own]
    outside = [v for v in temporaries if v.name in own]
    peak = fullest((*others, *outside)) + assign((*inside, *scratch)).total
    bound = fullest((*temporaries, *scratch, *others))
    gaps = 0.02 * fullest((*temporaries, *scratch)) + ALIGNMENT * (len(temporaries) + len(scratch))
    assert peak <= bound + gaps or not inside  # scratch alone may not fit


def test_fullest_counts_both_ends():
    assert fullest([]) == 0
    assert fullest([Lifetime("a", 3, 0, 1), Lifetime("b", 4, 1, 2), Lifetime("c", 5, 3, 3)]) == 7


def test_gaps_are_a_share_of_the_arena_not_of_what_a_forward_keeps():
    """Two moments of 15 and 16 KB beside 900 KB of results that stay."""
    early, late = Lifetime("t", 15_000, 0, 1), Lifetime("o", 16_000, 2, 3)
    kept = Lifetime("kept", 900_000, 0, 3)
    assert own_tensors([early], [], [late, kept]) == {"t"}


def test_temporaries_that_fit_beside_the_rest_stay():
    early, late = Lifetime("t", 1000, 0, 1), Lifetime("o", 1000, 2, 3)
    assert own_tensors([early], [], [late]) == {"t"}
    assert own_tensors([early], [], [Lifetime("o", 1000, 0, 3)]) == frozenset()
    assert aligned(1000) == 1024


WINDOW = "[64, 64], [64, 1], 0"


def product(name: str, a: str, b: str, out: str) -> str:
    return f"""
  extern {name} {out} = "aten.mm.default"(view({a}, {WINDOW}), view({b}, {WINDOW})) {{
  }}"""


def graph_of(nodes: str, buffers: str, inputs: str, outputs: str):
    lines = "\n".join(f"  buffer {b} : f32[64, 64] strides [64, 1] on cpu" for b in buffers)
    views = ", ".join(f"view({b}, {WINDOW})" for b in outputs)
    given = ", ".join(inputs)
    return parse_graph(f"graph g {{\n{lines}\n  input {given}\n{nodes}\n  output {views}\n}}")


def ordered(graph, frees_inputs: bool = True):
    sizes = {n: buffer_bytes(b, {}) for n, b in graph.buffers.items()}
    return by_memory(graph, sizes, frees_inputs, lambda g: peak_bytes(g, (), {}, frees_inputs))


# g: the gradient that comes in; u: the next one; w: that of a weight, from g and the saved a
BACKWARD = product("next", "g", "v", "u") + product("more", "u", "v", "t")
WEIGHT = product("weight", "g", "a", "w")


def test_a_product_that_frees_its_operands_goes_first():
    graph = graph_of(BACKWARD + WEIGHT, "gvautw", "gva", "tw")
    assert [n.name for n in ordered(graph).nodes] == ["weight", "next", "more"]
    assert ordered(graph, frees_inputs=False) is graph


def test_writes_in_place_keep_their_order():
    change = f"""
  extern change _ = "aten.copy_.default"(view(g, {WINDOW}), view(u, {WINDOW})) mutates g {{
  }}"""
    graph = graph_of(product("next", "g", "v", "u") + change + WEIGHT, "gvauw", "gva", "w")
    names = [n.name for n in ordered(graph).nodes]
    assert names.index("next") < names.index("change") < names.index("weight")


def test_random_calls_keep_their_order():
    draws = "".join(
        f"""
  extern {out} {out} = "aten.bernoulli.default"(view({given}, {WINDOW})) {{
  }}"""
        for given, out in (("g", "x"), ("a", "y"))
    )
    graph = graph_of(draws, "gaxy", "ga", "gxy")
    names = [n.name for n in ordered(graph).nodes]
    assert names.index("x") < names.index("y")


TWO = parse_graph("""graph two {
  buffer x : f32[8] strides [1] on cpu
  buffer y : f32[8] strides [1] on cpu
  buffer z : f32[8] strides [1] on cpu
  input x
  comp first [i:8] {
    %0 = load x[i] : f32
    store y[i] %0
  }
  comp second [i:8] {
    %0 = load y[i] : f32
    store z[i] %0
  }
  output view(z, [8], [1], 0)
}""")


def test_all_kernels_but_the_first_begin_early():
    """What a caller's kernel has written, parameters too, is complete before the second begins."""
    sources = [KernelSource("triton", n, "", (), early=True) for n in ("a", "b", "c")]
    bundles = {
        "second": KernelBundle("second", (sources[2],)),
        "first": KernelBundle("first", tuple(sources[:2])),
    }
    made = first_in_turn(TWO, bundles)
    assert [s.early for s in made["first"].sources] == [False, True]
    assert made["second"] is bundles["second"]
    assert first_in_turn(TWO, {}) == {}
