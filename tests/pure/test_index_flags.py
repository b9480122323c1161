"""Flags of a GPU's kernels, on memory that no GPU writes to; and what lowering and planning make of
indices on a GPU, without one."""

from __future__ import annotations

import math

import pytest
import torch
from lowering.lowered import capture
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from torchweld.capture.lower import lower
from torchweld.core.errors import IndexOutOfRange
from torchweld.core.options import Options
from torchweld.ir.index_check import sticky_flags
from torchweld.ir.nodes import Comp, Extern, Graph, Load
from torchweld.ir.parser import parse_graph
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.runtime.index_flags import IndexFlags, flags_of, raise_if_any_set
from torchweld.runtime.placement import place
from torchweld.runtime.steps import interpret
from torchweld.targets.find import named_target
from torchweld.templates.generate import generate_all, kernels_of

H100 = named_target("H100")
CHECKED = """
graph g {
  symbol s0 = ["size", 0, 0] hint 8
  buffer i : i64[s0] strides [1] on cuda:0
  buffer a : b1[] strides [] on cuda:0
  buffer b : b1[] strides [] on cuda:0
  input i
  comp k [n:s0] {
    %0 = load i[n] : i64
    %1 = const 4 : i64
    %2 = ge %0 %1 : b1
    %3 = lt %0 %1 : b1
    %4 = const True : b1
    store a[] %4 init 0 if %2
    store b[] %4 init 0 if %3
  }
  extern first = "torchweld.check_index"(view(a, [], [], 0), 0, 4) {
    from "aten.embedding.default" "tokens" "model.py:3"
  }
  extern second = "torchweld.check_index"(view(b, [], [], 0), -s0, s0) {
    from "aten.index.Tensor" "" "model.py:9"
  }
}"""


@pytest.fixture
def flags() -> tuple[IndexFlags, torch.Tensor]:
    memory = torch.zeros(128, dtype=torch.uint8)
    return IndexFlags(sticky_flags(parse_graph(CHECKED)), memory), memory


def test_a_clear_flag_says_nothing(flags):
    flags[0].raise_if_set()
    IndexFlags({}, None).raise_if_set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a", r"aten.embedding.default got an index outside \[0, 4\).*tokens, model.py:3"),
        ("b", r"aten.index.Tensor got an index outside \[-1\*s0, s0\).*model.py:9"),
    ],
)
def test_a_flag_that_is_set_is_told_once(flags, name, said):
    found, memory = flags
    found.tensors[name].fill_(True)
    with pytest.raises(IndexOutOfRange, match=said):
        found.raise_if_set()
    found.raise_if_set()
    assert not memory.any()


def test_memory_of_flags_is_real_in_the_midst_of_fake_tensors():
    with FakeTensorMode(), torch.inference_mode():
        found = flags_of(parse_graph(CHECKED))
    found.raise_if_set()
    found.tensors["b"].logical_or_(torch.tensor(True))
    with pytest.raises(IndexOutOfRange):
        raise_if_any_set()


def test_flags_have_a_place_of_their_own():
    placed = place(parse_graph(CHECKED), {}, ())
    assert (placed.kinds["a"], placed.kinds["b"]) == ("flag", "flag")
    assert placed.devices == ()


def test_interpreted_kernels_set_flags_and_do_not_clear_them():
    graph = parse_graph(CHECKED.replace("cuda:0", "cpu"))
    tensors = {"i": torch.tensor([1, 2]), "a": torch.tensor(True), "b": torch.tensor(False)}
    fetches = {n: lambda given, n=n: given[n] for n in tensors}
    reads, writes = {"i": fetches["i"]}, {n: fetches[n] for n in "ab"}
    step = interpret(graph.nodes[0], reads, writes, graph.buffers, {"s0": 2}, frozenset("ab"))
    step(tensors, None, 0)
    assert tensors["a"].item() and tensors["b"].item()


def lowered(function, *args: tuple) -> Graph:
    """`args`: (shape, dtype) of each."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = [torch.empty(s, dtype=d, device="cuda") for s, d in args]
        captured = capture(function, *tensors, mode="real")
    return lower(captured, Options()).graph


def planned(function, *args: tuple) -> Graph:
    return plan(rewrite(lowered(function, *args)), H100, Options()).graph


ROWS, INDEX, TABLE = ((8, 32), torch.int64), ((8, 3), torch.int64), ((100, 64), torch.bfloat16)
FUNCTIONS = {
    "embedding": (lambda i, x: F.embedding(i, x), ROWS, TABLE),
    "two embeddings and a norm": (
        lambda i, j, x: F.layer_norm(F.embedding(i, x) + F.embedding(j, x), (64,)),
        ROWS, ROWS, TABLE,
    ),
    "gather": (lambda i, x: x.gather(1, i), INDEX, TABLE),
    "scatter": (lambda i, x: x.scatter(1, i, 2.0), INDEX, TABLE),
    "cross-entropy": (lambda t, x: F.cross_entropy(x.float(), t), ((100,), torch.int64), TABLE),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "scatter"])
def test_a_check_costs_no_kernel(name):
    graph = planned(*FUNCTIONS[name])
    comps = [n for n in graph.nodes if isinstance(n, Comp)]
    stores = [s for n in comps for s in n.stores]
    assert {s.buffer for s in stores if s.guard is not None} == set(sticky_flags(graph))
    assert all(any(s.guard is None for s in n.stores) for n in comps), "a kernel of its own"
    assert set(generate_all(kernels_of(graph, H100))) == {n.name for n in comps}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accesses_by_unknown_indices_are_guarded(name):
    comps = [n for n in lowered(*FUNCTIONS[name]).nodes if isinstance(n, Comp)]
    reads = [i for n in comps for i in n.body if isinstance(i, Load) and len(i.index) == 2]
    by_value = [i for i in reads if not all(hasattr(e, "terms") for e in i.index)]
    assert all(i.guard is not None and math.isnan(i.fill) for i in by_value)
    assert bool(by_value) == (name != "scatter")
    written = [s for n in comps for s in n.stores if not all(hasattr(e, "terms") for e in s.index)]
    assert all(s.guard is not None for s in written)
    assert bool(written) == (name == "scatter")


def test_an_index_that_the_user_clamps_costs_nothing():
    graph = planned(lambda i, x: F.embedding(i.clamp(0, 99), x), ROWS, TABLE)
    (comp,) = graph.nodes
    assert not any(isinstance(i, Load) and i.guard is not None for i in comp.body)


def test_the_librarys_gradient_of_an_embedding_is_given_rows_that_exist():
    def gradient(grad, i):
        return torch.ops.aten.embedding_dense_backward(grad, i, 1000, -1, False)

    graph = planned(gradient, ((8, 32, 64), torch.bfloat16), ROWS)
    made, call = graph.nodes
    assert isinstance(call, Extern) and call.args[1].buffer == made.writes[0]
    clamped = planned(
        lambda grad, i: gradient(grad, i.clamp(0, 999)), ((8, 32, 64), torch.bfloat16), ROWS
    )
    assert [type(n) for n in clamped.nodes] == [Comp, Extern]
