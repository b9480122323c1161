"""Long scans become scans in stretches that mean the same, where those are predicted to be
faster."""

from __future__ import annotations

import pytest
import torch
from lowered import capture

from scan_cases import CASES
from torchweld.capture.lower import lower
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Buffer, Comp, Graph, Scan
from torchweld.ir.parser import parse_comp
from torchweld.passes.long_scans import scans_in_stretches
from torchweld.pipeline import plan_graph
from torchweld.targets.find import named_target, target_of
from torchweld.templates.pointwise_reduce.stretches import ways

TABLE = named_target("H200")


def changed(function, shape, dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    before = lower(capture(function, x), Options()).graph
    after = scans_in_stretches(before, TABLE)
    check_graph(after)
    return x, before, after


def scans(graph) -> int:
    return sum(isinstance(i, Scan) for n in graph.nodes if isinstance(n, Comp) for i in n.body)


@pytest.mark.parametrize("name", CASES)
def test_the_same_meaning(name):
    x, before, after = changed(*CASES[name])
    assert scans(after) == 2 * scans(before) > 0
    for exact in (True, False):
        (found,) = run_graph(after, [x.double() if exact else x], exact=exact)
        (wanted,) = run_graph(before, [x.double() if exact else x], exact=exact)
        near = 1e-9 if exact else 1e-2 if wanted.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(found, wanted, rtol=near, atol=near * max(1, wanted.abs().max()))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 4095, 4096, 20010])
def test_what_is_no_number_stays_behind_its_place(value, at):
    x, before, after = changed(lambda x: x.cumsum(-1), (2, 20011))
    x[1, at] = value
    for one, other in zip(run_graph(after, [x]), run_graph(before, [x]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2, equal_nan=True)


@pytest.mark.parametrize(("function", "shape"), [
    (lambda x: x.cumsum(-1), (3, 900)),  # short
    (lambda x: x.cumsum(-1), (9000, 5000)),  # rows enough
    (lambda x: x.cummax(-1)[1], (3, 20011)),  # of another's result
    (lambda x: x.softmax(-1), (3, 20011)),
], ids=["short", "rows", "of another", "none"])  # fmt: skip
def test_others_stay(function, shape):
    traced = torch.empty(shape, device="meta")
    graph = lower(capture(function, traced, mode="real"), Options()).graph
    assert scans_in_stretches(graph, TABLE) == graph


@pytest.mark.parametrize(("written", "some"), [("y", True), ("x", False)])
def test_what_it_reads_is_not_overwritten(written, some):
    comp = parse_comp(f"""comp c [j:100000] {{
      %0 = load x[j] : f32
      %1 = scan.sum[j] %0 : f32
      store {written}[j] %1
    }}""")
    buffers = {n: Buffer(n, (100000,), dtypes.f32, (1,), "cuda:0") for n in "xy"}
    assert bool(list(ways(comp, buffers))) == some


def test_nothing_is_read_at_places_behind_the_last():
    """Which are computed: that of the last stretch would be beyond the table."""
    comp = parse_comp("""comp c [j:20011] {
      %0 = index j : i64
      %1 = load x[%0] : f32
      %2 = scan.sum[j] %1 : f32
      store y[j] %2
    }""")
    buffers = {n: Buffer(n, (20011,), dtypes.f32, (1,)) for n in "xy"}
    x = torch.randn(20011, dtype=torch.float64)
    for made in ways(comp, buffers):
        known = {**buffers, **made.buffers}
        graph = Graph("g", (), known, made.comps, ("x",), (known["y"].view,))
        (found,) = run_graph(graph, [x])
        torch.testing.assert_close(found, x.cumsum(0))


def test_producers_are_in_both_kernels_that_read_them():
    x = torch.empty(4_000_000, device="meta")
    captured = capture(lambda x: x.exp().cumsum(0) * 2, x, mode="real")
    _, plan = plan_graph(captured, Options(), TABLE)
    totals, before, whole = plan.graph.nodes
    assert [len(n.reads) for n in (totals, before, whole)] == [1, 1, 2]
    assert scans(plan_graph(captured, Options(), target_of("cpu"))[1].graph) == 1
