"""Long chains and many equal layers: no recursion over values, equal kernels made once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import Cast, Comp, Load, Op
from torchweld.ir.parser import parse_comp, parse_graph
from torchweld.plan import legality
from torchweld.plan.flow import Flow
from torchweld.plan.refusals import Reason
from torchweld.plan.search import plan
from torchweld.runtime.memory import Layout, Lifetime, _overlap, _tightest_gap, aligned, assign
from torchweld.targets.find import target_of
from torchweld.templates import registry
from torchweld.templates.generate import generate_all, kernels_of
from torchweld.templates.pointwise_reduce.cpu.stages import stages
from torchweld.templates.pointwise_reduce.cpu.values import is_bf16

CPU = target_of("cpu")
LONG = 1200  # beyond Python's recursion limit of 1000


def body(length: int, step: str = "mul %{0} %{0}") -> str:
    lines = [f"%{k + 1} = {step.format(k)} : f32" for k in range(length)]
    return "\n".join(["%0 = load x[i, j] : f32", *lines])


def layers(count: int, operation: str = "exp"):
    """y = op(op(... x)), one Comp each."""
    names = ["x", *(f"t{k}" for k in range(count))]
    declared = "\n".join(f"buffer {n} : f32[8, 16] strides [16, 1] on cpu" for n in names)
    comps = "\n".join(
        f"""
        comp layer_{k} [i:8, j:16] {{
          %0 = load {names[k]}[i, j] : f32
          %1 = {operation} %0 : f32
          store {names[k + 1]}[i, j] %1
        }}"""
        for k in range(count)
    )
    return parse_graph(
        f"graph g {{\n{declared}\ninput x\n{comps}\n"
        f"output view({names[-1]}, [8, 16], [16, 1], 0)\n}}"
    )


def test_a_long_chain_is_scheduled_and_generated():
    graph = parse_graph(
        "graph g {\nbuffer x : f32[8, 16] strides [16, 1] on cpu\n"
        "buffer y : f32[8, 16] strides [16, 1] on cpu\ninput x\n"
        f"comp chain [i:8, j:16] {{\n{body(LONG)}\nstore y[i, j] %{LONG}\n}}\n"
        "output view(y, [8, 16], [16, 1], 0)\n}"
    )
    (bundle,) = generate_all(kernels_of(graph, CPU)).values()
    assert f"const float v{LONG} = v{LONG - 1} * v{LONG - 1};" in bundle.sources[0].text


def test_what_a_dag_costs_again_is_counted_no_further_than_needed():
    """Each value uses the one before twice: 2^60 ways through them."""
    comp = parse_comp(
        f"comp c [i:8, j:16] {{\n{body(60)}\n%61 = reduce.sum[j] %60 : f32\n"
        "%62 = sub %60 %61 : f32\nstore y[i, j] %62\n}"
    )
    assert stages(comp, frame_of(comp), frozenset("j")).kept == {60}


def test_a_long_choice_of_bfloat16_values_is_one():
    values = [Load("x", (), dtypes.bf16), Cast(0, dtypes.f32)]
    values += [Op("maximum", (k, k), dtypes.f32) for k in range(1, LONG)]
    assert is_bf16(values, LONG)
    values[1] = Load("y", (), dtypes.f32)
    assert not is_bf16(values, LONG)


def test_kernels_are_no_longer_than_a_compiler_takes(monkeypatch):
    graph = layers(40)
    whole = plan(graph, CPU, Options())
    assert len(whole.graph.nodes) == 1
    monkeypatch.setattr(legality, "MOST_INSTRUCTIONS", 20)
    cut = plan(graph, CPU, Options())
    assert len(cut.graph.nodes) > 1
    assert all(len(n.body) <= 20 for n in cut.graph.nodes)
    assert {r.reason for r in cut.refusals} == {Reason.TOO_LONG}


def test_equal_kernels_are_generated_and_told_once(monkeypatch):
    graph, generated, told = layers(6), [], []
    original = registry.generate
    monkeypatch.setattr(registry, "generate", lambda k: (generated.append(k), original(k))[1])
    made = generate_all(kernels_of(graph, CPU), made=told.append)
    assert len(made) == sum(isinstance(n, Comp) for n in graph.nodes) == 6
    assert len(generated) == len(told) == 1
    assert {s.text for b in made.values() for s in b.sources} == {told[0].sources[0].text}


def test_there_is_no_detour_along_a_chain():
    flow = Flow(layers(5))
    assert flow.detour(0, 1) is None
    assert flow.detour(0, 2) == 1
    assert flow.detour(0, 4) == 3


@st.composite
def lifetimes(draw):
    ends = st.tuples(st.integers(0, 150), st.integers(0, 90), st.integers(0, 2000))
    found = draw(st.lists(ends, max_size=40))
    return [Lifetime(f"b{k}", size, first, first + n) for k, (first, n, size) in enumerate(found)]


@given(lifetimes())
def test_offsets_are_those_of_looking_at_every_pair(lives):
    assert assign(lives) == looking_at_every_pair(lives)


def looking_at_every_pair(lives) -> Layout:
    placed, offsets = [], {}
    for life in sorted(lives, key=lambda v: (-v.bytes, v.first, v.name)):
        size = aligned(life.bytes)
        busy = sorted((s, e) for s, e, other in placed if _overlap(life, other))
        start = offsets[life.name] = _tightest_gap(busy, size)
        if size:
            placed.append((start, start + size, life))
    return Layout(offsets, max((end for _, end, _ in placed), default=0))
