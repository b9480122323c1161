"""Factors that the caller holds in unaligned rows: which are copied before products are joined."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import H100, calls, captured, comps, run

import product_cases as cases
from product_cases import parts
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Graph
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.templates.gemm.choice import choose


def planned(function, *args, options: Options | None = None) -> Graph:
    plan = Plan(captured(function, *args), ())
    for name in H100.passes[: H100.passes.index("align extents") + 1]:
        plan = PASSES[name].run(plan, Context(H100, options or Options()))
    check_graph(plan.graph)
    return plan.graph


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def weight_gradient(dy, x):
    return dy.t() @ x


def forms(graph: Graph) -> list[str]:
    """Of the kernels that make products."""
    found = (parts(cases.Case("made", c, graph.buffers, {}, {})) for c in comps(graph))
    return [choose(*f, graph.buffers, H100).form for f in found if f[1] is not None]


def copies(graph: Graph) -> list[str]:
    return [c.name for c in comps(graph) if c.name.startswith("copy_")]


def test_the_gradient_of_a_weight_with_63_columns_is_our_kernel_on_a_copy():
    """By the library it would take as long with rows apart: its lines of 63 stay odd."""
    graph = planned(weight_gradient, empty(262144, 128), empty(262144, 63))
    (copied,) = copies(graph)
    assert graph.buffers[copied.removeprefix("copy_")].strides == (64, 1)
    assert calls(graph) == [] and forms(graph) == ["triton"]


@pytest.mark.parametrize(("function", "shapes", "copied"), [
    (F.linear, ((2048, 2047), (2048, 2047)), 2),
    (F.linear, ((4096, 4095), (4096, 4095), (4096,)), 2),
    (torch.mm, ((2048, 2047), (2047, 2048)), 1),
    (torch.bmm, ((16, 512, 511), (16, 511, 512)), 1),
    (F.linear, ((2464, 1333), (1111, 1333)), 2),  # lines of the result begin anywhere, too
])  # fmt: skip
def test_an_odd_depth_is_read_by_tma_from_copies(function, shapes, copied):
    graph = planned(function, *(empty(*s) for s in shapes))
    assert len(copies(graph)) == copied and forms(graph) == ["gluon"] and calls(graph) == []


@pytest.mark.parametrize(("function", "shapes"), [
    (F.linear, ((50176, 63), (128, 63))),  # a copy takes as long as the product
    (F.linear, ((64, 255), (64, 255))),
    (weight_gradient, ((50176, 195), (50176, 96))),  # 31.5 us on an H100; 19 apart, and the copy
    (torch.bmm, ((16, 511, 511), (16, 511, 511))),  # ours 37 us and copies, the library 33
    (F.linear, ((2048, 2048), (2048, 2048))),
])  # fmt: skip
def test_no_copy_is_made_that_does_not_pay(function, shapes):
    assert copies(planned(function, *(empty(*s) for s in shapes))) == []


def test_numerics_as_eagers_leave_the_library_its_rows():
    options = Options(numerics="eager")
    graph = planned(weight_gradient, empty(262144, 128), empty(262144, 63), options=options)
    assert calls(graph) == ["aten.mm.default"] and copies(graph) == []


def both_gradients(x, w, dy):
    return dy @ w, dy.t() @ x


def test_products_of_one_factor_share_its_copy():
    graph = planned(both_gradients, empty(4096, 1024), empty(1023, 1024), empty(4096, 1023))
    assert len(copies(graph)) == 1


def test_what_a_product_means_stays():
    function = PASSES["pad products"].run
    graph = captured(F.linear, empty(320, 4095), empty(4096, 4095), empty(4096))
    padded = function(Plan(graph, ()), Context(H100, Options())).graph
    check_graph(padded)
    assert len(copies(padded)) == 2
    torch.manual_seed(0)
    args = [torch.randn(s).to(torch.bfloat16) for s in ((320, 4095), (4096, 4095), (4096,))]
    (found,), (wanted,) = (run(g, args, exact=False) for g in (padded, graph))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
