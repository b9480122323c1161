"""Products whose rows are no multiples of 16 bytes: who makes them, and at which price."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import H100, calls, captured, comps

import product_cases as cases
from product_cases import parts
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import View
from torchweld.ir.size import symbol
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.targets.find import named_target
from torchweld.targets.gpus import GENERIC
from torchweld.templates.gemm.alignment import (
    copied_for_call,
    of_call,
    of_loads,
    stores_whole_lines,
)
from torchweld.templates.gemm.choice import choose
from torchweld.templates.gemm.price import Work, library_s


def planned(function, *args) -> Plan:
    plan = Plan(captured(function, *args), ())
    for name in H100.passes[: H100.passes.index("align extents") + 1]:
        before, plan = plan, PASSES[name].run(plan, Context(H100, Options()))
        if plan.graph is not before.graph:
            check_graph(plan.graph)
    return plan


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(("columns", "own"), [(195, True), (196, True), (192, False)])
def test_a_layer_of_odd_width_is_our_kernel_and_one_of_even_width_the_librarys(columns, own):
    """What the caller gets is dense: no copy is made."""
    graph = planned(F.linear, empty(50176, 96), empty(columns, 96), empty(columns)).graph
    assert (calls(graph) == []) == own and len(comps(graph)) == own


def odd_head(x, w, b):
    """Two kernels read the product."""
    y = F.linear(x, w, b)
    return torch.cumsum(y[:, :96].float(), 1), y[:, 96:192].amax(1), y[:, 192:].flip(0)


def test_a_temporary_of_odd_width_has_rows_that_tma_writes():
    graph = planned(odd_head, empty(50176, 96), empty(195, 96), empty(195)).graph
    first = comps(graph)[0]
    (made,) = first.writes
    assert calls(graph) == [] and graph.buffers[made].strides == (200, 1)
    found = parts(cases.Case("made", first, graph.buffers, {}, {}))
    assert choose(*found, graph.buffers, H100).form == "gluon"


def weight_gradient(dy, x):
    return dy.t() @ torch.sin(x)


@pytest.mark.parametrize(("width", "own"), [(63, True), (64, False)])
def test_the_gradient_of_a_weight_of_odd_width(width, own):
    """What it is multiplied with is a temporary, which is aligned; the result is not."""
    graph = planned(weight_gradient, empty(131072, 128), empty(131072, width)).graph
    assert (calls(graph) == []) == own
    assert graph.buffers[comps(graph)[0].writes[0]].strides == (64, 1)


def test_the_gradient_of_a_weight_of_unaligned_rows_is_the_librarys():
    """Loads of two bytes are not pipelined: of 195 columns an H100 takes 218 us, the library 31."""
    graph = planned(lambda dy, x: dy.t() @ x, empty(50176, 195), empty(50176, 96)).graph
    assert "aten.mm.default" in calls(graph)


@pytest.mark.parametrize(("sizes", "alignment", "us"), [
    ((50176, 192, 96), 16, 16.0), ((50176, 194, 96), 4, 26.0), ((50176, 195, 96), 2, 40.1),
    ((50176, 196, 96), 8, 25.9), ((12544, 387, 192), 2, 47.9), ((3136, 771, 384), 2, 41.9),
    ((50176, 96, 195), 2, 36.4), ((50176, 96, 196), 8, 26.7), ((50176, 128, 63), 2, 20.3),
    ((262144, 3, 128), 2, 75.3), ((262144, 4, 128), 8, 41.2), ((128, 63, 262144), 2, 84.2),
    ((195, 96, 50176), 2, 31.5), ((8192, 50257, 768), 2, 6570),
])  # fmt: skip
def test_the_library_as_measured(sizes, alignment, us):
    seconds = library_s(Work(1, *sizes, alignment=alignment), H100)
    assert seconds * 1e6 == pytest.approx(us, rel=0.3)


@pytest.mark.parametrize("target", [named_target("A100"), GENERIC], ids=lambda t: t.name)
def test_devices_that_were_not_measured_lose_by_it_too(target):
    times = [library_s(Work(1, 50176, 195, 96, alignment=a), target) for a in (16, 8, 4, 2)]
    assert times[0] < times[1] == times[2] < times[3]


@pytest.mark.parametrize(("left", "right", "result", "bytes"), [
    ((64, 1), (1, 64), (200, 1), 16),
    ((64, 1), (1, 64), (195, 1), 2),
    ((63, 1), (1, 64), (200, 1), 2),
    ((1, 68), (196, 1), (200, 1), 8),
    ((symbol("s") * 8, 1), (1, 64), (200, 1), 16),
    ((symbol("s"), 1), (1, 64), (200, 1), 2),
])  # fmt: skip
def test_what_a_call_is_aligned_to(left, right, result, bytes):
    views = View("a", (512, 64), left), View("b", (64, 200), right), View("y", (512, 200), result)
    assert of_call(*views, 2) == bytes


def matrix(rows: int, columns: int, pitch: int, turned: bool = False) -> View:
    found = View("a", (rows, columns), (pitch, 1))
    return View("a", (columns, rows), (1, pitch)) if turned else found


@pytest.mark.parametrize(("left", "right", "result", "bytes", "copied"), [
    (matrix(512, 63, 64), matrix(63, 200, 200), matrix(512, 200, 200), 2, None),  # the depth
    (matrix(512, 195, 200, True), matrix(512, 96, 96), matrix(195, 96, 96), 16, []),
    (matrix(512, 195, 200, True), matrix(512, 95, 96), matrix(195, 95, 96), 2, None),
    (matrix(512, 96, 96), matrix(195, 96, 96, True), matrix(512, 195, 195), 2, [2, 1]),
    (matrix(512, 96, 100), matrix(96, 200, 200), matrix(512, 200, 200), 8, [0]),
    (matrix(512, 63, 63), matrix(1, 63, 63, True), matrix(512, 1, 1), 16, None),  # a vector
])  # fmt: skip
def test_lengths_count_along_the_depth_and_in_results(left, right, result, bytes, copied):
    matrices = left, right, result
    assert of_call(*matrices, 2) == bytes
    found = copied_for_call(*matrices, 2, wider=True)
    assert found == (None if copied is None else [matrices[k] for k in copied])
    assert copied != [2, 1] or copied_for_call(*matrices, 2, wider=False) is None


@pytest.mark.parametrize(("case", "loads", "whole"), [
    (cases.linear(512, 195, 96), 16, False),
    (cases.apart(cases.linear(512, 195, 96), "y"), 16, True),
    (cases.apart(cases.linear(512, 200, 63)), 2, True),
    (cases.linear(512, 200, 68), 8, True),
    (cases.apart(cases.linear(195, 200, 96, left="km", right="kn")), 16, True),
    (cases.residual(512, 200, 96, order="nm"), 16, False),
    (cases.heads(3, 50, 4, 32, 96), 16, True),
])  # fmt: skip
def test_what_a_kernel_loads_and_stores_at_once(case, loads, whole):
    assert of_loads(*parts(case)) == loads and stores_whole_lines(*parts(case)) == whole


@pytest.mark.parametrize(("case", "form"), [
    (cases.biased(50176, 195, 96), "triton"),  # lines that are not aligned
    (cases.apart(cases.biased(50176, 195, 96), "y"), "gluon"),
    (cases.residual(3136, 384, 1536), "gluon"),
    (cases.residual(3136, 384, 1536, order="nm"), "triton"),
    (cases.linear(128, 64, 131072, left="km", right="kn"), "triton"),  # few tiles, a long depth
    (cases.apart(cases.linear(50176, 96, 195, right="kn")), "gluon"),
    (cases.linear(50176, 96, 195, right="kn"), "triton"),
])  # fmt: skip
def test_which_form_makes_it(case, form):
    assert choose(*parts(case), case.buffers, H100).form == form
