"""Products in a row as one kernel: which form it has, which networks become one, what they mean,
what is refused and at which price."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from nets import calls, captured, comps, error, on, run
from plan.plan_programs import program

import chain_cases as cases
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Cast, Reduce
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.plan.refusals import Reason
from torchweld.targets.find import named_target
from torchweld.templates.chain.form import chain_of, chain_or_reason
from torchweld.templates.chain.price import seconds
from torchweld.templates.chain.schedule import Work, candidates, supports
from torchweld.templates.generate import kernels_of

H100, A100 = named_target("H100"), named_target("A100")
ROWS = 1 << 18
PASS = list(H100.passes).index("chains")


def r(*shape, dtype=torch.bfloat16):
    return torch.randn(shape).to(dtype)


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


def planned(function, *args, target=H100, passes=PASS + 1) -> Plan:
    plan = Plan(captured(function, *args), ())
    for name in target.passes[:passes]:
        before, plan = plan, PASSES[name].run(plan, Context(target, Options()))
        if plan.graph is not before.graph:
            check_graph(plan.graph)
    return plan


def same_meaning(function, *args, target=H100) -> Plan:
    """Asserts that the pass keeps the meaning in float64, and that results rounded as written are
    within the contract of eager."""
    before, after = (planned(function, *args, target=target, passes=PASS + k) for k in (0, 1))
    listed = [f if isinstance(f, (tuple, list)) else [f]
              for f in (function(*args), function(*(a.double() for a in args)))]  # fmt: skip
    for one, other in zip(run(after.graph, args, True), run(before.graph, args, True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    for mine, theirs, right in zip(run(after.graph, args, False), *listed, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        allowed = 1.5 * error(theirs, right) * (1 + 4 / mine.numel() ** 0.5) + 2**-9
        assert error(mine, right) <= allowed
    return after


def templates(plan: Plan, target=H100) -> list[str]:
    return [k.template for k in kernels_of(plan.graph, target)]


def mlp(x, *weights):
    *inner, last = weights
    for w in inner:
        x = F.relu(F.linear(x, w))
    return F.linear(x, last)


def step(function, *args):
    """A function of tensors -> its result and all gradients."""

    def both(*given):
        made, back = torch.func.vjp(function, *given)
        return (made, *back(made.detach() * 0.5 + 0.1))

    return both, args


# the form


def test_roles_of_an_mlp():
    chain = chain_of(cases.layers(100, (3, 64, 64, 4)).comp)
    assert (chain.batch, chain.rows) == ((), ("m",))
    assert [(k.depth, k.columns) for k in chain.links] == [
        (("c",), ("d",)), (("d",), ("e",)), (("e",), ("f",))
    ]  # fmt: skip


def test_roles_of_a_backward():
    chain = chain_of(cases.backward(100, (4, 20, 33)).comp)
    assert chain.rows == ("m",)
    assert [(k.depth, k.columns) for k in chain.links] == [(("c",), ("d",)), (("d",), ("e",))]


def test_roles_with_a_batch():
    chain = chain_of(cases.layers(20, (16, 24, 8), batch=5).comp)
    assert (chain.batch, chain.rows, len(chain.links)) == (("b",), ("m",), 2)


def test_other_forms_have_a_reason():
    one = cases.layers(100, (16, 16)).comp
    assert chain_or_reason(one) == "its products are side by side"
    max_of_rows = replace(one, body=tuple(
        replace(i, monoid="max") if isinstance(i, Reduce) else i for i in one.body))  # fmt: skip
    assert "something else than a sum" in chain_or_reason(max_of_rows)


# networks


def test_an_mlp_is_one_kernel():
    plan = same_meaning(mlp, r(37, 3), r(20, 3), r(33, 20), r(4, 33))
    assert len(plan.graph.nodes) == 1 and templates(plan) == ["chain"]


@pytest.mark.parametrize("act", (F.gelu, F.silu, torch.tanh, lambda x: x, lambda x: 1 / x))
@pytest.mark.parametrize("shape", ((37,), (2, 19), (3, 1, 7)))
def test_activations_and_leading_dimensions(act, shape):
    def net(x, a, b, bias, res):
        return F.linear(act(F.linear(x, a, bias)), b) * 2 + res

    plan = same_meaning(net, r(*shape, 24), r(17, 24), r(8, 17), r(17), r(*shape, 8))
    assert len(plan.graph.nodes) == 1 and templates(plan) == ["chain"]


def test_a_gated_mlp():
    def net(x, gate, up, down):
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    plan = same_meaning(net, r(2048, 24), r(40, 24), r(40, 24), r(8, 40))
    assert len(plan.graph.nodes) == 1 and templates(plan) == ["chain"]


def test_weights_the_other_way():
    plan = same_meaning(lambda x, a, b: F.relu(x @ a) @ b, r(37, 24), r(24, 17), r(17, 8))
    assert len(plan.graph.nodes) == 1 and templates(plan) == ["chain"]


def test_each_value_between_is_rounded_once():
    plan = planned(mlp, r(37, 16), r(16, 16), r(16, 16))
    (comp,) = comps(plan.graph)
    roundings = [i for i in comp.body if isinstance(i, Cast) and i.dtype.name == "bf16"]
    assert len(roundings) == 2 and any(i.must_round for i in roundings)


def test_a_training_step_stores_what_its_weight_gradients_read():
    """They are products apart; the gradients on the left are in the chain."""
    function, args = step(mlp, empty(ROWS, 64), *(empty(64, 64) for _ in range(4)))
    plan = planned(function, *args)
    assert calls(plan.graph) == ["aten.mm.default"] * 4 and templates(plan) == ["chain"]
    large = [b for b in plan.graph.buffers.values() if b.shape == (ROWS, 64)]
    assert len(large) == 1 + 1 + 3 + 5  # input, result, activations, gradients


@pytest.mark.parametrize("bias", ((), (r(20),)), ids=("plain", "bias"))
def test_gradients_mean_the_same(bias):
    def net(x, a, b, c, *bias):
        return F.linear(torch.tanh(F.linear(F.silu(F.linear(x, a, *bias)), b)), c)

    args = r(1 << 15, 5), r(20, 5), r(33, 20), r(4, 33), *bias
    function, args = step(net, *args)
    assert "chain" in templates(same_meaning(function, *args))


def test_a_norm_between_ends_the_chain():
    def net(x, a, b, c):
        return F.linear(F.layer_norm(F.relu(F.linear(F.relu(F.linear(x, a)), b)), (20,)), c)

    plan = same_meaning(net, r(37, 24), r(16, 24), r(20, 16), r(8, 20))
    assert len(plan.graph.nodes) > 1


def test_who_reads_an_intermediate_otherwise_gets_it_from_memory():
    def net(x, a, b):
        h = F.relu(F.linear(x, a))
        return F.linear(h, b) + h

    plan = same_meaning(net, r(37, 24), r(16, 24), r(16, 16))
    assert len(plan.graph.nodes) == 2
    (why,) = (f for f in plan.refusals if f.reason is Reason.ROWS)
    assert why.bytes_at_stake == 2 * 37 * 16


# refusals and prices


def first_added(x, w, v):
    h = x @ w
    return (h + h[:1]) @ v


def last_added(x, w, v):
    h = x @ w
    return torch.addmm(h[-1:] @ v, h, v)


@pytest.mark.parametrize("function", [first_added, last_added])
@pytest.mark.parametrize("rows", [4, 100, 333])
def test_a_row_that_others_read_is_not_their_own(function, rows):
    """The campaign's 21444 and 21853: each row took itself for the first."""
    same_meaning(function, r(rows, 64), r(64, 17), r(17, 33))


def relu(body, x):
    return body.op("maximum", x, 0.0)


def work(case, target=H100) -> Work:
    return Work(case.comp, case.buffers, chain_of(case.comp), target, case.sizes)


def test_wide_layers_are_refused():
    assert "too wide for a chip" in supports(work(cases.layers(ROWS, (64, 1024, 64))))
    plan = planned(mlp, empty(ROWS, 64), empty(1024, 64), empty(64, 1024))
    assert "chain" not in templates(plan)
    (why,) = (f for f in plan.refusals if f.reason is Reason.TEMPLATE)
    assert "too wide for a chip" in why.evidence and why.bytes_at_stake == 2 * ROWS * 1024


def test_what_fits_a_larger_chip_is_refused_on_a_smaller():
    case = cases.layers(ROWS, (128, 256, 128))
    small = replace(H100, shared_bytes=99 << 10)
    assert supports(work(case)) is None and supports(work(case, small)) is not None
    old = replace(H100, capability=(7, 5))
    assert "sm_80" in supports(work(case, old))


def test_widths_that_are_known_only_at_the_call_are_refused():
    case = cases.layers(100, (16, "s0", 16), sizes={"s0": 16})
    assert "known only at the call" in supports(work(case))


def test_float32_is_refused():
    args = (empty(*s, dtype=torch.float32) for s in ((ROWS, 64), (64, 64), (64, 64)))
    plan = planned(mlp, *args)
    assert "chain" not in templates(plan)
    (why,) = (f for f in plan.refusals if f.reason is Reason.TEMPLATE)
    assert "not of the same 16 bits" in why.evidence and why.bytes_at_stake == 4 * ROWS * 64


def test_sums_over_the_rows_are_refused():
    """What a layer's weight gradient sums is stored, and the product stays apart."""

    def net(x, a, b, y):
        h = F.relu(F.linear(x, a))
        return F.linear(h, b), h.t() @ y

    plan = same_meaning(net, r(2048, 24), r(20, 24), r(8, 20), r(2048, 7))
    assert templates(plan).count("chain") == 1
    assert "a sum over the rows" in {f.evidence for f in plan.refusals}


def test_a_chain_that_is_predicted_to_be_slower_is_not_made():
    """Products at a hundredth of the rate, while calls are as fast as before."""
    slow = {n: replace(f, tflops=f.tflops / 100) if n == "triton" else f
            for n, f in H100.products.forms.items()}  # fmt: skip
    target = replace(H100, products=replace(H100.products, forms=slow))
    args = empty(ROWS, 64), empty(64, 64), empty(64, 64)
    plan = planned(mlp, *args, target=target)
    assert "chain" not in templates(plan, target)
    assert Reason.SLOWER in {f.reason for f in plan.refusals}


@pytest.mark.parametrize("target", (H100, A100), ids=lambda t: t.name)
@pytest.mark.parametrize("case", (
    cases.layers(ROWS, (64,) * 5, act=relu), cases.layers(ROWS, (64,) * 5, act=relu, keep=True),
    cases.backward(ROWS, (64,) * 5),
), ids=("inference", "forward", "backward"))  # fmt: skip
def test_prices_are_above_the_floor_of_the_bytes(case, target):
    todo = work(case, target)
    floor = todo.moved_bytes / target.dram_bytes_per_s
    for schedule in candidates(todo):
        assert floor < seconds(todo, schedule) < 20 * floor
    assert floor < seconds(todo, next(candidates(todo))) < 4 * floor


def test_a_chain_costs_more_with_fewer_multiprocessors_and_more_rows():
    case, more = cases.layers(ROWS, (64,) * 5), cases.layers(2 * ROWS, (64,) * 5)
    first = next(candidates(work(case)))
    assert seconds(work(case), first) < seconds(work(more), first)
    slower = replace(H100, dram_bytes_per_s=H100.dram_bytes_per_s / 2)
    assert seconds(work(case), first) < seconds(work(case, slower), first)


BOTH_READ = """
    comp t [m:4096, h:16, k:16] {
      %0 = load x[m, k] : bf16
      %1 = cast %0 : f32
      %2 = load a[k, h] : bf16
      %3 = cast %2 : f32
      %4 = mul %1 %3 : f32
      %5 = reduce.sum[k] %4 : f32
      %6 = cast %5 : bf16
      store t[m, h] %6
    }
    comp u [m:4096, h:16] {
      %0 = load t[m, h] : bf16
      %1 = cast %0 : f32
      %2 = exp %1 : f32
      %3 = cast %2 : bf16
      store u[m, h] %3
    }
    comp y [m:4096, n:8, h:16] {
      %0 = load u[m, h] : bf16
      %1 = cast %0 : f32
      %2 = load t[m, h] : bf16
      %3 = cast %2 : f32
      %4 = mul %1 %3 : f32
      %5 = cast.round %4 : bf16
      %6 = cast %5 : f32
      %7 = load b[h, n] : bf16
      %8 = cast %7 : f32
      %9 = mul %6 %8 : f32
      %10 = reduce.sum[h] %9 : f32
      %11 = cast %10 : bf16
      store y[m, n] %11
    }
"""


def test_a_result_that_two_read_is_there_for_both():
    buffers = ("x bf16 4096 16; a bf16 16 16; b bf16 16 8; t bf16 4096 16; u bf16 4096 16; "
               "y bf16 4096 8")  # fmt: skip
    graph = on(program(buffers, "x a b", BOTH_READ, "y"), "cuda:0")
    after = PASSES["chains"].run(Plan(graph, ()), Context(H100, Options())).graph
    check_graph(after)
    args = r(4096, 16), r(16, 16) / 8, r(16, 8)
    assert len(after.nodes) == 1
    (one,), (other,) = (run(g, args, True) for g in (graph, after))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
