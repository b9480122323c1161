"""An explanation from a record written by hand: groups, library calls, refusals, events."""
from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import torchweld.observe.views.explain as module
from torchweld.codegen.cpp.headers import common_header
from torchweld.codegen.source import KernelSource
from torchweld.core.dtypes import f32
from torchweld.ir.affine import axis
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Extern,
    Graph,
    Load,
    Origin,
    Store,
    View,
)
from torchweld.observe.record.profile import Place
from torchweld.observe.record.report import Source
from torchweld.observe.report.advice import ADVICE, OWN_KERNEL, OWN_KERNEL_ADVICE
from torchweld.observe.report.parts import graph_part
from torchweld.observe.report.work import bytes_moved, kernel_count
from torchweld.observe.views.explain import Explanation, explain
from torchweld.plan.decisions import Choice, Cut, Fusion, RefusalRecord
from torchweld.plan.refusals import Reason
from torchweld.runtime.record import Note
from torchweld.targets.find import target_of

ADD, NORM = Origin("aten.add.Tensor", "layer.0"), Origin("aten.native_layer_norm.default")
ROWS, COLUMNS = 6, 10
BYTES = ROWS * COLUMNS * 4


def record():
    buffers = {n: Buffer(n, (ROWS, COLUMNS), f32, (COLUMNS, 1)) for n in "xyzw"}
    whole = View("x", (ROWS, COLUMNS), (COLUMNS, 1))
    row = View("w", (ROWS, COLUMNS), (0, 1))
    nodes = (
        *(Comp(name, (), (), ()) for name in ("k0", "k1", "k2")),
        Extern("mm", "aten.mm.default", (whole, row), (), ("y",)),
        Extern("lin", "torchweld.linear", (whole,), (), ("z",)),
    )
    graph = Graph("g", (), buffers, nodes, ("x",), ())
    fusions = [Fusion(k, ("a", "b"), (ADD, NORM), 900, 300, 2, 1, 4.0) for k in ("k0", "k1")]
    refusals = [
        RefusalRecord("a", "b", Reason.EXTERN, "mm", 50),
        RefusalRecord("c", "d", Reason.EXTERN, "lin", 70),
        RefusalRecord("e", "f", Reason.ROWS, "", 500),
    ]
    events = [Note("packed", f"w{i}", "kept twice", 1000, "B") for i in range(3)]
    source = KernelSource("cpp", "tw_1", common_header() + "int only;\n", ())
    two = SimpleNamespace(sources=(source, replace(source, name="tw_2")))
    one = SimpleNamespace(sources=(source,))
    return SimpleNamespace(
        name="g", kind="inference", device="cpu", graph=graph,
        bundles={"k0": two, "k1": one, "k2": one}, timings_s={"plan": 0.1}, cached=False,
        decisions=(*fusions, Cut("m", ("k2",), 1.0), *refusals), events=events, kept=frozenset())


def test_groups_that_repeat_are_one():
    (group,) = graph_part(record()).groups
    assert (group.kernel, group.repeats, group.saved_us) == ("k0", 2, 4.0)
    assert group.operations == [Place(ADD.op, "layer.0"), Place(NORM.op)]
    assert group.sources == [Source("cpp", "tw_1", "int only;\n"),
                             Source("cpp", "tw_2", "int only;\n")]


def test_refusals_by_reason_the_most_bytes_first():
    rows, extern = graph_part(record()).refusals
    assert (rows.reason, rows.bytes_at_stake) == (Reason.ROWS.value, 500)
    assert (extern.pairs, extern.bytes_at_stake, extern.example) == (2, 120, "c -> d: lin")
    assert extern.cost_us == pytest.approx(2 * 120 / target_of("cpu").dram_bytes_per_s * 1e6)
    assert extern.advice == ADVICE[Reason.EXTERN]
    assert [(a.producer.op, a.pairs, a.bytes_at_stake) for a in extern.apart] == [
        ("c", 1, 70), ("a", 1, 50)]


def test_a_refused_pair_is_told_by_its_lines():
    made = record()
    origins = Origin("aten.mul.Tensor", "m", "f.py:3"), Origin("aten.add.Tensor", "m", "f.py:4")
    made.graph = replace(made.graph, nodes=(Comp("a", (), (), (), origins),
                                            Comp("b", (), (), (), origins)))
    same = [RefusalRecord("a", "b", Reason.ROWS, "rows 4", 8)] * 3
    made.decisions = (*same, RefusalRecord("b", "gone", Reason.ROWS, "rows 4", 8))
    alike, other = graph_part(made).refusals[0].apart
    assert (alike.producer.source, alike.consumer.source) == ("f.py:4", "f.py:3")
    assert (alike.pairs, alike.bytes_at_stake, alike.evidence) == (3, 24, "rows 4")
    assert other.consumer == Place("gone")


def own_product(reason=Reason.EXTERN):
    """A product that was a library call when it was planned, and its reader: joined, or not."""
    buffers = {n: Buffer(n, (ROWS, COLUMNS), f32, (COLUMNS, 1)) for n in "xyz"}
    product, reader = Origin("aten.mm.default", "m", "f.py:1"), Origin("aten.gelu.default")
    x = Load("x", (axis("i"), axis("j")), f32)
    axes = Axis("i", ROWS), Axis("j", COLUMNS)
    body, stores = (x,), (Store("y", x.index, 0),)
    both = Comp("gelu", axes, body, stores, (product, reader))
    alone = Comp("mm", axes, body, stores, (product,))
    pair = RefusalRecord("mm", "gelu", reason, "aten.mm.default", BYTES)

    def made(*nodes, decisions=(pair,)):
        return SimpleNamespace(
            name="g", kind="inference", device="cpu", bundles={}, timings_s={}, cached=False,
            graph=Graph("g", (), buffers, nodes, ("x",), ()), decisions=decisions, events=[],
            kept=frozenset())

    return made, both, alone, pair


def test_a_product_with_a_kernel_of_its_own_is_no_library_call():
    made, both, alone, _ = own_product()
    (refused,) = graph_part(made(alone, both)).refusals
    assert (refused.reason, refused.advice) == (OWN_KERNEL, OWN_KERNEL_ADVICE)


def test_another_reason_stays_where_a_node_is_gone():
    made, both, *_ = own_product(Reason.ROWS)
    (refused,) = graph_part(made(both)).refusals
    assert refused.reason == Reason.ROWS.value


def test_every_reason_has_its_advice():
    assert set(ADVICE) == set(Reason)


def test_the_rest_is_counted():
    part = graph_part(record())
    assert part.unfused == 1
    assert part.library_calls == {"aten.mm.default": 1, "torchweld.linear": 1}
    assert part.events == ["packed: 3 times, such as w0: kept twice (3 kB)"]


def test_kernels_are_sources_and_library_calls():
    assert kernel_count([record(), record()]) == 2 * (2 + 1 + 1 + 2)


def test_bytes_of_a_library_call_count_an_expanded_dimension_once():
    made = record()
    made.graph = Graph("g", (), made.graph.buffers, made.graph.nodes[3:4], ("x",), ())
    assert bytes_moved([made]) == BYTES + COLUMNS * 4 + BYTES


def test_what_makes_kernels_is_told_of_equal_layers_together():
    made = record()
    choices = [Choice(k, "gemm/cpu", "Schedule(tile=8)", us, "not conv: no window")
               for k, us in (("k2", 1.0), ("k", 9.0), ("k_1", 9.0), ("k_12", 8.0))]
    made.decisions, made.bundles = choices, {"k": made.bundles["k0"]}
    part = graph_part(made)
    assert [(m.kernels, m.predicted_us) for m in part.kernels] == [
        (["k", "k_1"], 9.0), (["k_12"], 8.0), (["k2"], 1.0)]
    assert part.kernels[0].functions == ["tw_1", "tw_2"]
    told = str(Explanation((part,)))
    assert "2 x k .. k_1: by gemm/cpu, 9.0 us (predicted)" in told
    assert told.count("Schedule(tile=8)") == told.count("not conv: no window") == 3


def test_text_and_dict_hold_every_part(monkeypatch):
    monkeypatch.setattr(module, "records", lambda fused: [record()])
    explanation = explain("fused")
    text = str(explanation)
    for part in ["2 x k0: 900 B -> 300 B", "add @ layer.0, native_layer_norm", "1 kernels of one",
                 "1 x library call aten.mm.default", "2 pairs, 120 B at stake", "kept twice",
                 "compiled in 0.10 s: capture 0.00, lower 0.00, plan 0.10"]:
        assert part in text
    assert explanation.to_dict()["graphs"][0]["groups"][0]["repeats"] == 2


def test_nothing_compiled_is_told():
    assert "Call the fused model once" in str(Explanation(()))
