"""What is on record of the steps after the search: each pair that stays apart has its reason, and
no reason contradicts its evidence."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_programs import program

from torchweld.core.options import Options
from torchweld.ir.nodes import Comp
from torchweld.plan.cpu_products import choose_products
from torchweld.plan.decisions import Plan, RefusalRecord
from torchweld.plan.epilogues import with_readers
from torchweld.plan.library_calls import gpu_calls
from torchweld.plan.products.kernel import Offer
from torchweld.plan.products.told import explained
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.find import target_of
from torchweld.targets.gpus import H100
from torchweld.targets.rates import favouring
from torchweld.templates.gemm.comp import product_comp

CPU = target_of("cpu")
PRODUCT = """
    extern up t = "aten.mm.default"(view(x, [64, 128], [128, 1], 0), \
view(w, [128, 256], [256, 1], 0)) {
    }
"""
READER = """
    comp act [i:64, j:256] {
      %0 = load t[i, j] : f32
      %1 = exp %0 : f32
      store y[i, j] %1
    }
"""
BUFFERS = "x f32 64 128; w f32 128 256; t f32 64 256; y f32 64 256; z f32 64 256"


def offer(before_us: float, after_us: float, leeway: float = 0.0) -> Offer:
    return Offer((0,), None, None, before_us * 1e-6, after_us * 1e-6, leeway)


@pytest.mark.parametrize("after_us, reason", [
    (60.0, Reason.SLOWER), (50.0, Reason.SLOWER), (49.5, Reason.MARGIN), (30.0, Reason.BETTER),
])  # fmt: skip
def test_an_offer_that_is_not_taken(after_us, reason):
    refusal = offer(50.0, after_us).refusal(0.02)
    assert refusal.reason is reason
    assert refusal.evidence.startswith(f"50.0 us apart, {after_us:.1f} us together")


_US = st.floats(0.1, 1e5)


@given(before_us=_US, after_us=_US, margin=st.floats(0, 0.5), leeway=st.floats(-0.3, 0.3))
def test_no_refusal_contradicts_itself(before_us, after_us, margin, leeway):
    made = offer(before_us, after_us, leeway)
    refusal = made.refusal(margin)
    apart, together = map(float, re.findall(r"([0-9.]+) us", refusal.evidence))
    if refusal.reason is Reason.SLOWER:
        assert together >= apart
    else:
        assert together <= apart or made.pays(margin)
    assert (refusal.reason is Reason.BETTER) == made.pays(margin)


def own(text: str, outputs: str, runs=lambda comp, graph: True) -> Plan:
    """The plan with the product as a Comp, and its reader in it if that can be."""
    graph = program(BUFFERS, "x w", text, outputs)
    made = {n.name: product_comp(n, graph.buffers) for n in graph.nodes if n.name == "up"}
    apart = RefusalRecord("up", "act", Reason.EXTERN, "aten.mm.default", 0)
    return with_readers(Plan(graph, (apart,)), made, runs, CPU)


def told(plan: Plan) -> list[tuple[str, Reason]]:
    return [(r.consumer, r.reason) for r in plan.refusals if r.producer == "up"]


def test_a_reader_that_joins_is_on_no_record():
    plan = own(PRODUCT + READER, "y")
    assert told(plan) == [] and len(plan.graph.nodes) == 1


def test_a_result_that_others_need():
    assert told(own(PRODUCT + READER, "y t")) == [("act", Reason.READERS)]


def test_a_template_that_does_not_take_both():
    plan = own(PRODUCT + READER, "y", runs=lambda comp, graph: False)
    assert told(plan) == [("act", Reason.TEMPLATE)]


def test_a_reader_that_is_a_call():
    call = 'extern act y = "aten.relu.default"(view(t, [64, 256], [256, 1], 0)) {\n}\n'
    assert told(own(PRODUCT + call, "y")) == [("act", Reason.EXTERN)]


@pytest.mark.parametrize("way, reason", [("own", None), ("aten", Reason.SLOWER)])
def test_a_product_on_a_cpu_says_what_both_would_take(way, reason):
    graph = program(BUFFERS, "x w", PRODUCT + READER, "y")
    target = replace(CPU, rates=favouring(way))
    plan = choose_products(Plan(graph, ()), target, Options(), "inference")
    if reason is None:
        assert told(plan) == [] and all(isinstance(n, Comp) for n in plan.graph.nodes)
    else:
        assert told(plan) == [("act", reason)] and "us apart" in plan.refusals[0].evidence


def test_a_library_call_on_a_gpu_says_which_epilogue_it_lacks():
    graph = program(BUFFERS, "x w", PRODUCT + READER, "y")
    (record,) = gpu_calls(Plan(graph, ()), Options(), "inference", H100).refusals
    assert record.reason is Reason.EPILOGUE and record.evidence
    (record,) = gpu_calls(Plan(graph, ()), Options(numerics="eager"), "inference", H100).refusals
    assert record.evidence == "eager numerics round in between"


def test_what_is_known_already_stays_and_what_says_nothing_goes():
    graph = program(BUFFERS, "x w", PRODUCT + READER, "y")
    new = {("up", "act"): Refusal(Reason.EPILOGUE, "no activation")}
    for before, after in ((Reason.SLOWER, Reason.SLOWER), (Reason.EXTERN, Reason.EPILOGUE)):
        known = RefusalRecord("up", "act", before, "", 0)
        (record,) = explained(Plan(graph, (known,)), new).refusals
        assert record.reason is after
