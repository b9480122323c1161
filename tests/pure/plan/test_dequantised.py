"""Which dequantised weights go into their product, and why others do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import dequantised_cases as cases
from torchweld.core import dtypes
from torchweld.ir.access import addressed
from torchweld.ir.interpret import run_graph
from torchweld.ir.interval import bounds
from torchweld.ir.nodes import Comp, Extern, Load
from torchweld.ir.parser import parse_comp
from torchweld.ir.simplify import simplify
from torchweld.plan.refusals import Reason
from torchweld.targets.rates import favouring
from torchweld.templates.gemm.dequantised import schedule
from torchweld.templates.generate import kernels_of

BIG = 1, 4096, 4096, 128  # rows, outputs, depth, group


def planned(kind, rows, outputs, depth, group, dtype=torch.float32, target=cases.CPU):
    x, q, scale, _ = cases.inputs(kind, 1, 1, 8 * group, group, dtype)
    x = x.new_empty(rows, depth)
    if kind is cases.words:
        q = q.new_empty(depth // 8, outputs)
    elif kind is cases.stacked:
        q = q.new_empty(outputs // 2, depth)
    else:
        q = q.new_empty(outputs, depth // cases.PER_BYTE.get(kind, 1))
    scale = scale.new_empty(outputs, depth // group)
    return cases.planned(cases.graph_of(kind, x, q, scale, scale.clone()), target)


def reasons(plan):
    return {d.reason: d.evidence for d in plan.refusals if d.producer != d.consumer}


@pytest.mark.parametrize("kind", cases.FUSED, ids=lambda k: k.__name__)
def test_one_row_is_one_kernel(kind):
    target = replace(cases.CPU, features=("avx2", "avx512"))  # which a table in registers needs
    plan = planned(kind, *BIG, target=target)
    assert not [n for n in plan.graph.nodes if isinstance(n, Extern)]
    assert kernels_of(plan.graph, target)[-1].template == "gemm/dequantised"


@pytest.mark.parametrize("kind", cases.FUSED, ids=lambda k: k.__name__)
def test_the_meaning_stays(kind, monkeypatch):
    cases.always(monkeypatch)
    args = cases.inputs(kind, 3, 5, 64, 16)
    graph = cases.graph_of(kind, *args)
    (before,), (after,) = (run_graph(g, list(args)) for g in (graph, cases.planned(graph).graph))
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


def test_unpacking_that_is_a_kernel_of_its_own_comes_too():
    """At some sizes the plan writes out what was unpacked."""
    plan = planned(cases.nibbles, *BIG, dtype=torch.bfloat16)
    assert [type(n) for n in plan.graph.nodes] == [Comp]


def test_many_rows_are_the_librarys():
    target = replace(cases.CPU, rates=favouring("aten"))
    plan = planned(cases.groups, 4096, 256, 1024, 64, target=target)
    assert Reason.SLOWER in reasons(plan)
    plan = planned(cases.groups, 17, 256, 1024, 64, torch.bfloat16)
    assert "16 bits" in reasons(plan)[Reason.TEMPLATE]


def test_outputs_that_are_adjacent_are_the_librarys():
    why = reasons(planned(cases.words, *BIG))[Reason.TEMPLATE]
    assert why.startswith("packed weights that are not adjacent")


@pytest.mark.parametrize("more", [lambda w, x: w, lambda w, x: x @ w.t()], ids=["kept", "twice"])
def test_a_weight_that_others_want_is_written_out(more):
    def layer(x, q, scale):
        w = q.to(x.dtype) * scale[:, None]
        return F.linear(x, w), more(w, x + 1)

    args = torch.randn(1, 512), torch.zeros(1024, 512, dtype=torch.int8), torch.rand(1024)
    plan = cases.planned(cases.graph_of(layer, *args))
    assert Reason.READERS in reasons(plan)
    assert [n for n in plan.graph.nodes if isinstance(n, Extern)]


def test_a_weight_that_is_changed_between_is_written_out(monkeypatch):
    cases.always(monkeypatch)

    def layer(x, q, scale):
        w = q.to(x.dtype) * scale[:, None]
        y = torch.linalg.inv(x)  # a call, before which nothing moves
        q.bitwise_xor_(1)
        return F.linear(y, w)

    q = torch.ones(64, 48, dtype=torch.int8)
    args = torch.eye(48) * 2, q, torch.rand(64)
    graph = cases.graph_of(layer, *args)
    expected = layer(args[0], q.clone(), args[2])
    (found, *_) = run_graph(cases.planned(graph).graph, [args[0], q.clone(), args[2]])
    torch.testing.assert_close(found.float(), expected)


def test_a_computation_that_reads_as_much_stays_apart(monkeypatch):
    cases.always(monkeypatch)
    args = torch.randn(2, 256), torch.randn(512, 256)
    plan = cases.planned(cases.graph_of(lambda x, w: F.linear(x, w * 2), *args))
    assert "gemm/dequantised" not in {k.template for k in kernels_of(plan.graph, cases.CPU)}


def test_sizes_known_only_at_the_call(monkeypatch):
    cases.always(monkeypatch)
    args = cases.inputs(cases.plain, 3, 40, 64, 64)
    graph = cases.on(cases.captured(cases.plain, *args, mode="symbolic"), "cpu")
    plan = cases.planned(graph)
    assert "known only at the call" in reasons(plan)[Reason.TEMPLATE]


# -- roles --


def roles(kind, rows, outputs, depth, group, features=("avx2", "avx512")):
    plan = planned(kind, rows, outputs, depth, group, target=replace(cases.CPU, features=features))
    kernel = kernels_of(plan.graph, replace(cases.CPU, features=features))[-1]
    return kernel.roles, kernel.problem


def test_codes_are_looked_up_where_vectors_are_wide():
    found, _ = roles(cases.nibbles, *BIG)
    assert (found.codes.low, found.codes.count) == (-8, 16)
    assert roles(cases.quarters, *BIG)[0].codes.count == 4
    assert roles(cases.groups, *BIG)[0].codes is None  # 256 of them
    assert roles(cases.nibbles, *BIG, features=("avx2",))[0].codes is None


@pytest.mark.parametrize(
    "kind, depth, group, chunks, step",
    [
        (cases.plain, 4096, 4096, 8, 512),
        (cases.plain, 1000, 1000, 2, 512),
        (cases.groups, 4096, 32, 8, 512),
        (cases.groups, 4080, 48, 9, 512),  # ten groups of 48, and zeros
        (cases.nibbles, 4096, 128, 8, 512),
    ],
)
def test_terms_are_made_in_chunks(kind, depth, group, chunks, step):
    found, problem = roles(kind, 1, 4096, depth, group)
    accesses = addressed(problem.comp, problem.buffers)
    geometry = schedule.geometry_of(accesses.comp, found)
    assert (geometry.chunks, geometry.step) == (chunks, step)
    assert isinstance(accesses.comp.body[found.packed], Load)
    assert problem.buffers[accesses.loads[found.packed].buffer].dtype.bytes == 1


# -- what it needs of the IR --


def test_bounds_of_masks_shifts_and_guarded_reads():
    comp = parse_comp("""comp c [i:8] {
      %0 = load x[i] : u8
      %1 = const 4 : u8
      %2 = shr %0 %1 : u8
      %3 = load y[i] : i32
      %4 = const 12 : i32
      %5 = bit_and %3 %4 : i32
      %6 = index i : i64
      %7 = const 3 : i64
      %8 = lt %6 %7 : b1
      %9 = load z[i] if %8 else 7 : i8
      store a[i] %2
      store b[i] %5
      store c[i] %9
    }""")
    known = bounds(comp, {"z": (-2, 5)}.get)
    assert known[2] == (0, 15) and known[5] == (0, 12) and known[9] == (-2, 7)


@pytest.mark.parametrize("kind, exact", [("i8", True), ("u8", True), ("i16", False)])
def test_a_small_integer_is_the_same_through_bfloat16(kind, exact):
    comp = parse_comp(f"""comp c [i:8] {{
      %0 = load x[i] : {kind}
      %1 = cast %0 : bf16
      %2 = cast %1 : f32
      store y[i] %2
    }}""")
    assert (len(simplify(comp).body) == 2) == exact
    if exact:
        every = torch.arange(256).to(dtypes.to_torch(dtypes.BY_NAME[kind]))
        assert torch.equal(every.to(torch.bfloat16).float(), every.float())
