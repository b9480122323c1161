"""Factors of float32 products that do not lie along the depth: which are copied, and when."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import H100, calls, captured, comps, run

import product_cases as cases
from product_cases import parts
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.contraction import column_sums
from torchweld.ir.nodes import Comp, Graph
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.targets.gpus import A100
from torchweld.templates.gemm.comp import product_comp


def changed(function, *args, target=H100, until="lay factors", options=None) -> Graph:
    plan = Plan(captured(function, *args), ())
    for name in target.passes[: target.passes.index(until) + 1]:
        plan = PASSES[name].run(plan, Context(target, options or Options()))
    check_graph(plan.graph)
    return plan.graph


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape)


def copies(graph: Graph) -> list[Comp]:
    return [c for c in comps(graph) if c.name.startswith("copy_")]


def weight_gradient(dy, x):
    return dy.t() @ x


def both_gradients(x, w, dy):
    return dy @ w, dy.t() @ x


def test_a_gradient_of_a_weight_has_a_kernel_of_ours_on_a_copy_of_its_smaller_factor():
    graph = changed(weight_gradient, empty(2048, 512), empty(2048, 2048))
    (copied,) = copies(graph)
    assert graph.buffers[copied.writes[0]].shape == (512, 2048)
    assert calls(changed(weight_gradient, empty(2048, 512), empty(2048, 2048),
                         until="join products")) == []  # fmt: skip


@pytest.mark.parametrize(("function", "shapes"), [
    (torch.mm, ((2048, 512), (512, 2048))),  # sides are exchanged
    (F.linear, ((2048, 512), (2048, 512))),
    (weight_gradient, ((100, 64), (100, 64))),  # the library's anyway
    (torch.mm, ((999, 333), (333, 777))),  # 20 us on an H200, of which copies would take half
])  # fmt: skip
def test_no_copy_is_made_that_does_not_pay(function, shapes):
    assert copies(changed(function, *map(empty, *zip(*shapes)))) == []


@pytest.mark.parametrize("function", [torch.mm, F.linear, weight_gradient])
def test_an_odd_depth_is_filled_up_with_zeros_in_both_factors(function):
    m, k, n = 4105, 1473, 2961
    shapes = {torch.mm: ((m, k), (k, n)), F.linear: ((m, k), (n, k)),
              weight_gradient: ((k, m), (k, n))}[function]  # fmt: skip
    graph = changed(function, *(empty(*s) for s in shapes))
    made = [graph.buffers[c.writes[0]] for c in copies(graph)]
    assert sorted(b.shape for b in made) == [(2961, 1476), (4105, 1476)]
    assert all(b.strides == (1476, 1) for b in made)


def test_products_of_one_factor_share_its_copy():
    def two(x, dy, dz):
        return dy.t() @ x, dz.t() @ x

    graph = changed(two, empty(2048, 512), empty(2048, 2048), empty(2048, 2048))
    assert len(copies(graph)) == 1


def test_what_is_written_meanwhile_is_not_copied():
    def written(x, dy):
        first = dy.t() @ x
        x.mul_(2)
        return first, dy.t() @ x

    graph = changed(written, empty(2048, 512), empty(2048, 2048))
    assert not any("arg0" in c.reads for c in copies(graph))


def test_a_device_that_turns_as_fast_and_numerics_as_eagers_have_no_copies():
    args = empty(2048, 512), empty(2048, 2048)
    assert copies(changed(weight_gradient, *args, target=A100)) == []
    assert copies(changed(weight_gradient, *args, options=Options(numerics="eager"))) == []


def test_products_in_tf32_are_the_librarys_as_they_lie(monkeypatch):
    monkeypatch.setattr("torchweld.plan.products.laid.products_have_tf32", lambda: True)
    assert copies(changed(weight_gradient, empty(2048, 512), empty(2048, 2048))) == []


@pytest.mark.parametrize(("function", "shapes"), [
    (weight_gradient, ((1024, 1024), (1024, 1536))),
    (both_gradients, ((1024, 1024), (1536, 1024), (1024, 1536))),
    (torch.mm, ((2051, 1021), (1021, 1027))),
    (torch.bmm, ((3, 1025, 1023), (3, 1023, 1026))),
    (lambda x: x[:, :1021] @ x[:, 1021:].mT, ((2050, 2042),)),  # two parts of one tensor
    (lambda x: x @ x.mT, ((2051, 1021),)),
    (lambda b, x, y: torch.addmm(b, x, y, alpha=2), ((1027,), (2051, 1021), (1021, 1027))),
    (lambda x, y: torch.einsum("abk,kc->abc", x.transpose(0, 2).contiguous().transpose(0, 2), y),
     ((64, 32, 1021), (1021, 2050))),
])  # fmt: skip
def test_what_a_product_means_stays(function, shapes):
    torch.manual_seed(0)
    args = [torch.randint(-3, 4, s).float() for s in shapes]  # sums are exact in any order
    graph = changed(function, *args)
    names = [c.writes[0] for c in copies(graph)]
    assert names and len(names) == len(set(names))
    for found, wanted in zip(run(graph, args, exact=False), _results(function, args)):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def _results(function, args):
    made = function(*args)
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize(("m", "k", "n", "exchanged"), [
    (1024, 512, 256, True), (64, 512, 256, False), (1024, 512, 64, False),
    (4194240, 32, 128, True), (4194241, 32, 128, False),
])  # fmt: skip
def test_sides_are_exchanged_where_a_right_factor_lies_along_the_columns(m, k, n, exchanged):
    """Not of few rows or columns, which are one tile."""
    for function, turned in ((torch.mm, exchanged), (lambda x, w: F.linear(x, w.t()), exchanged)):
        graph = captured(function, empty(m, k), empty(k, n))
        comp = product_comp(graph.nodes[0], graph.buffers)
        accesses, contraction = parts(cases.Case("made", comp, graph.buffers, {}, {}))
        left = accesses.comp.body[contraction.products[0].left_load].buffer
        assert (left == graph.inputs[1]) == turned


def test_rows_that_are_not_known_keep_their_sides():
    """They may be more than a grid has tiles of columns for."""
    case = cases.linear("s0", 256, 512, "f32", right="kn", sizes={"s0": 1024})
    accesses, contraction = parts(case)
    assert accesses.comp.body[contraction.products[0].left_load].buffer == "x"


def test_sums_of_columns_keep_their_sides():
    """Of a bias: what a template adds up are columns."""

    def backward(dy, w):
        dx = dy @ w
        return dx, dx.sum(0)

    graph = changed(backward, empty(4096, 2048), empty(2048, 1024), until="join products")
    made = [parts(cases.Case("made", c, graph.buffers, {}, {})) for c in comps(graph)]
    sums = [(a, c) for a, c in made if c and column_sums(a, c)]
    lefts = [a.comp.body[c.products[0].left_load].buffer for a, c in sums]
    assert lefts == [graph.inputs[0]]
