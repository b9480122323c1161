"""A plan means what its graph means: random programs, every option, sizes as symbols."""

from __future__ import annotations

import random

import pytest
import torch
from plan_programs import kernels, planned, program, random_inputs

from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Graph
from torchweld.targets.find import target_of

POINTWISE = ("exp", "neg", "tanh", "abs")
ROWS, COLUMNS = 6, 12


def random_program(seed: int) -> Graph:
    """Operations on [6, 12], flat and transposed forms, rows and columns; some results kept."""
    rng = random.Random(seed)
    buffers, kinds, comps = ["x f32 6 12", "w f32 12"], {"x": "full", "w": "column"}, []
    for k in range(rng.randint(3, 9)):
        name, source = f"t{k}", rng.choice(list(kinds))
        make = rng.choice(_MAKERS)
        result = make(rng, name, source, kinds)
        if result is not None:
            text, shape, kinds[name] = result
            buffers.append(f"{name} f32 {shape}")
            comps.append(text)
    made = [n for n in kinds if n not in "xw"]
    if not made:
        return random_program(seed + 1000)
    kept = sorted({made[-1], *rng.sample(made, len(made) // 3)})
    return program("; ".join(buffers), "x w", "\n".join(comps), " ".join(kept))


def _index(name: str, kinds: dict) -> str:
    """How an element (i, j) of [6, 12] is read from `name`."""
    forms = {"full": "i, j", "column": "j", "row": "i", "flat": "12*i+j", "turned": "j, i"}
    return forms[kinds[name]]


def _pointwise(rng, name, source, kinds):
    other = rng.choice(list(kinds))
    form = rng.choice(["full", "flat", "turned"])
    shape = {"full": "6 12", "flat": "72", "turned": "12 6"}[form]
    place = _index(name, {name: form})
    text = f"""
    comp {name} [i:6, j:12] {{
      %0 = load {source}[{_index(source, kinds)}] : f32
      %1 = load {other}[{_index(other, kinds)}] : f32
      %2 = {rng.choice(POINTWISE)} %0 : f32
      %3 = add %1 %2 : f32
      store {name}[{place}] %3
    }}"""
    return text, shape, form


def _softmax(rng, name, source, kinds):
    text = f"""
    comp {name} [i:6, j:12] {{
      %0 = load {source}[{_index(source, kinds)}] : f32
      %1 = reduce.max[j] %0 : f32
      %2 = sub %0 %1 : f32
      %3 = exp %2 : f32
      %4 = reduce.sum[j] %3 : f32
      %5 = div %3 %4 : f32
      store {name}[i, j] %5
    }}"""
    return text, "6 12", "full"


def _reduced(rng, name, source, kinds):
    over, kept, shape, form = rng.choice([("j", "i", "6", "row"), ("i", "j", "12", "column")])
    text = f"""
    comp {name} [i:6, j:12] {{
      %0 = load {source}[{_index(source, kinds)}] : f32
      %1 = reduce.sum[{over}] %0 : f32
      store {name}[{kept}] %1
    }}"""
    return text, shape, form


def _rotated(rng, name, source, kinds):
    """The two halves of the columns exchanged, one negated."""
    if kinds[source] != "full":
        return None
    text = f"""
    comp {name} [i:6, j:12] {{
      %0 = index j : i64
      %1 = const 6 : i64
      %2 = lt %0 %1 : b1
      %3 = load {source}[i, j+6] if %2 else 0 : f32
      %4 = neg %3 : f32
      %5 = ge %0 %1 : b1
      %6 = load {source}[i, j+-6] if %5 else 0 : f32
      %7 = where %2 %4 %6 : f32
      store {name}[i, j] %7
    }}"""
    return text, "6 12", "full"


_MAKERS = (_pointwise, _pointwise, _softmax, _reduced, _rotated)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    graph = random_program(seed)
    result = planned(graph)
    assert len(kernels(result)) <= len(graph.nodes)
    planned(graph, device=target_of("cpu"))


@pytest.mark.parametrize("seed", range(20))
def test_one_kernel_per_operation(seed):
    graph = random_program(seed)
    assert len(kernels(planned(graph, fuse=False))) >= len(graph.nodes)


def test_symbolic_sizes():
    graph = program(
        "x f32 s0 12; t f32 12*s0; y f32 s0 12", "x",
        """
        comp a [i:s0, j:12] {
          %0 = load x[i, j] : f32
          %1 = exp %0 : f32
          store t[12*i+j] %1
        }
        comp b [i:s0, j:12] {
          %0 = load t[12*i+j] : f32
          %1 = reduce.sum[j] %0 : f32
          %2 = div %0 %1 : f32
          store y[i, j] %2
        }
        """, "y", symbols='symbol s0 = ["size", 0, 0] hint 5',
    )  # fmt: skip
    assert len(kernels(planned(graph))) == 1


BF16_CHAIN = """
    comp a [i:6, j:12] {
      %0 = load x[i, j] : bf16
      %1 = cast %0 : f32
      %2 = exp %1 : f32
      %3 = cast %2 : bf16
      store t[i, j] %3
    }
    comp b [i:6, j:12] {
      %0 = load t[i, j] : bf16
      %1 = cast %0 : f32
      %2 = reduce.sum[j] %1 : f32
      %3 = div %1 %2 : f32
      %4 = cast %3 : bf16
      store u[i, j] %4
    }
    comp c [i:6, j:12] {
      %0 = load u[i, j] exact : bf16
      %1 = cast %0 : f32
      %2 = const 0.1 : f32
      %3 = gt %1 %2 : b1
      store y[i, j] %3
    }
"""


def test_eager_numerics_are_bitwise():
    graph = program("x bf16 6 12; t bf16 6 12; u bf16 6 12; y b1 6 12", "x", BF16_CHAIN, "u y")
    result = planned(graph, numerics="eager")
    assert len(kernels(result)) == 1
    inputs = random_inputs(graph)
    wanted = run_graph(graph, inputs, exact=False)
    assert all(map(torch.equal, wanted, run_graph(result.graph, inputs, exact=False)))


def test_what_decides_is_rounded_even_when_fused():
    graph = program("x bf16 6 12; t bf16 6 12; u bf16 6 12; y b1 6 12", "x", BF16_CHAIN, "y")
    (kernel,) = kernels(planned(graph))
    rounded = [i for i in kernel.body if getattr(i, "must_round", False)]
    assert len(rounded) == 1
