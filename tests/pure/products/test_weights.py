"""Weights of few bits on a GPU: which go into their product, and why others do not."""

from __future__ import annotations

from math import prod

import pytest
import torch
import torch.nn.functional as F
from products.nets import H100, captured, on

import dequantised_cases as cases
from torchweld.core.options import Options
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Extern
from torchweld.ir.parser import parse_graph
from torchweld.plan.decisions import Plan
from torchweld.plan.products.form import form_products
from torchweld.plan.refusals import Reason
from torchweld.templates.gemm.choice import choose
from torchweld.templates.generate import kernels_of

KINDS = (*cases.FUSED, cases.words)
BF16 = torch.bfloat16


def planned(function, *args):
    return cases.planned(on(captured(function, *args), "cuda:0"), H100)


def large(kind, rows, dtype=BF16, outputs=4096, depth=4096, group=128):
    """The plan of a layer at a size that pays, of empty tensors."""
    x, q, scale, _ = cases.inputs(kind, 1, 1, 8 * group, group, dtype)
    per = cases.PER_BYTE.get(kind, 1)
    shape = {cases.words: (depth // 8, outputs), cases.stacked: (outputs // 2, depth)}
    q = q.new_empty(shape.get(kind, (outputs, depth // per)))
    scale = scale.new_empty(outputs, depth // group)
    return planned(kind, x.new_empty(rows, depth), q, scale, scale.clone())


def kernels(plan):
    return [k.template for k in kernels_of(plan.graph, H100)]


def written_out(plan, elements):
    """Floats of so many elements."""
    buffers = plan.graph.buffers.values()
    return [b.name for b in buffers if b.dtype.is_float and prod(b.shape) == elements]


def same_meaning(graph, plan, args):
    before, after = (run_graph(on(g, "cpu"), list(args)) for g in (graph, plan.graph))
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-10)


def reasons(plan):
    return {d.reason: d.evidence for d in plan.refusals if d.producer != d.consumer}


# Each kind with one row in one of the two tests, and with several in the other.
@pytest.mark.parametrize(
    ("kind", "rows"), [(kind, (1, 16)[at % 2]) for at, kind in enumerate(KINDS)]
)
def test_few_rows_are_one_kernel(kind, rows):
    plan = large(kind, rows)
    assert not [n for n in plan.graph.nodes if isinstance(n, Extern)]
    assert kernels(plan)[-1] == "gemm/skinny" and not written_out(plan, 4096 * 4096)


@pytest.mark.parametrize(
    ("kind", "rows"), [(kind, (3, 1)[at % 2]) for at, kind in enumerate(KINDS)]
)
def test_the_meaning_stays(kind, rows):
    args = cases.inputs(kind, rows, 1024, 512, 64, BF16)
    graph = captured(kind, *args)
    plan = cases.planned(on(graph, "cuda:0"), H100)
    assert kernels(plan)[-1] == "gemm/skinny" and not written_out(plan, 1024 * 512)
    same_meaning(graph, plan, args)


def test_unpacking_that_is_a_kernel_of_its_own_comes_too():
    n, k = 4096, 4096
    graph = parse_graph(f"""graph g {{
  buffer x : bf16[1, {k}] strides [{k}, 1] on cuda:0
  buffer q : u8[{n}, {k // 2}] strides [{k // 2}, 1] on cuda:0
  buffer codes : u8[{n}, {k // 2}, 2] strides [{k}, 2, 1] on cuda:0
  buffer w : bf16[{n}, {k}] strides [{k}, 1] on cuda:0
  buffer y : bf16[1, {n}] strides [{n}, 1] on cuda:0
  input x, q
  comp codes [n:{n}, k:{k // 2}, l:2] {{
    %0 = load q[n, k] : u8
    %1 = index l : i64
    %2 = const 4 : i64
    %3 = mul %1 %2 : i64
    %4 = cast %3 : u8
    %5 = shr %0 %4 : u8
    store codes[n, k, l] %5
  }}
  comp w [n:{n}, k:{k // 2}, l:2] {{
    %0 = load codes[n, k, l] : u8
    %1 = cast %0 : bf16
    store w[n, 2*k+l] %1
  }}
  extern y y = "aten.mm.default"(view(x, [1, {k}], [{k}, 1], 0), \
view(w, [{k}, {n}], [1, {k}], 0)) {{
  }}
  output view(y, [1, {n}], [{n}, 1], 0)
}}""")
    plan = form_products(Plan(graph, ()), H100, Options(), choose)
    (kernel,) = plan.graph.nodes
    assert kernel.reads == ("x", "q")


def test_many_rows_are_the_librarys():
    plan = large(cases.groups, 512)
    assert Reason.SLOWER in reasons(plan)


def test_float32_is_written_out():
    plan = large(cases.groups, 4, torch.float32)
    assert reasons(plan)[Reason.TEMPLATE] == "few rows of float32"


def test_a_weight_that_is_returned_is_written_out():
    def layer(x, q, scale):
        w = q.to(x.dtype) * scale[:, None]
        return F.linear(x, w), w

    q = torch.zeros(4096, 4096, dtype=torch.int8)
    plan = planned(layer, torch.zeros(1, 4096, dtype=BF16), q, torch.zeros(4096, dtype=BF16))
    assert len(plan.graph.nodes) == 2


def test_weights_that_one_kernel_made_go_into_the_product_of_each():
    def keys_and_values(x, k, v, s):
        return (x @ k.t().to(x.dtype)) * s, F.linear(x + 1, v.to(x.dtype) * s[:, None])

    made = torch.Generator().manual_seed(0)
    k, v = (torch.randint(-128, 128, (1024, 512), generator=made).to(torch.int8) for _ in "kv")
    args = torch.randn(2, 512).to(BF16), k, v, torch.rand(1024).to(BF16)
    graph = captured(keys_and_values, *args)
    plan = cases.planned(on(graph, "cuda:0"), H100)
    assert not written_out(plan, 1024 * 512)
    same_meaning(graph, plan, args)


def test_gate_and_up_are_one_kernel_with_both_weights():
    def gated(x, g, u, s):
        gate, up = (F.linear(x, q.to(x.dtype) * s[:, None]) for q in (g, u))
        return F.silu(gate) * up

    g, u = (torch.zeros(4096, 1024, dtype=torch.int8) for _ in "gu")
    plan = planned(gated, torch.zeros(1, 1024, dtype=BF16), g, u, torch.zeros(4096, dtype=BF16))
    assert kernels(plan) == ["gemm/skinny"]
    (fusion,) = plan.fusions
    assert fusion.launches_after == 1 and fusion.separate_us > fusion.fused_us > 0
