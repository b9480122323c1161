"""Twice the graph is at most twice the work: lines of Python that each function of ours executes,
counted, not timed. And no function calls itself once for each operation of a chain."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

import torchweld
from torchweld.capture.captured import Captured
from torchweld.core.options import Options
from torchweld.pipeline import finished_plan, plan_graph
from torchweld.runtime.load import _reordered
from torchweld.runtime.placement import place
from torchweld.targets.find import named_target, target_of
from torchweld.templates.generate import generate_all

CPU = target_of("cpu")
OURS = str(Path(torchweld.__file__).parent)
# A quadratic function's growth doubles from one step to the next, a linear one's stays.
MOST = 1.4


def layers(x, w):
    for m in w:
        x = F.gelu(F.layer_norm(F.linear(x, m, m[0]), (8,), m[0], m[1]))
    return [x]


def residual(x, w):
    """Sums of layers: what is behind a layer is all layers before."""
    for m in w:
        y = F.linear(F.silu(F.linear(F.rms_norm(x, (8,), m[0]), m)), m)
        x = x + y
    return [x]


def updates(x, w):
    return [a for m in w for a in (m * 0.9 + x[:, 0], m - 0.001 * m / ((m * m).sqrt() + 1e-8))]


def captured(run, count: int, *shape: int) -> Captured:
    x, weights = torch.randn(*(shape or (8, 8))), [torch.randn(8, 8) for _ in range(count)]
    trace = make_fx(functionalize(lambda flat: run(flat[0], flat[1:])), tracing_mode="fake")
    return Captured(trace([x, *weights]), "test", "inference")


def whole(graph: Captured) -> None:
    """All stages but compiling."""
    plan = plan_graph(graph, Options(calibrate="off"), CPU)[1]
    bundles = generate_all(plan.kernels)
    place(_reordered(plan.graph, {}, {}, False), bundles, ())


def steps(graph: Captured) -> Counter:
    """Lines executed, by function."""
    counters: dict = {}  # by the address of a function's code: its hash is of all that it has

    def entered(frame, *_):
        code = frame.f_code
        if id(code) not in counters:
            counters[id(code)] = code, *_counter(code.co_filename.startswith(OURS))
        return counters[id(code)][1]

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        whole(graph)
    finally:
        sys.settrace(before)
    return Counter({code: lines[0] for code, _, lines in counters.values() if lines[0]})


def _counter(ours: bool):
    """What is told of each line, and how many there were; None where no line counts."""
    lines = [0]

    def line(frame, event, _):
        if event == "line":
            lines[0] += 1
        return line

    return (line if ours else None), lines


@pytest.mark.parametrize("run, count", [(layers, 4), (residual, 4), (updates, 6)])
def test_no_function_does_more_for_each_layer_of_more_layers(run, count):
    whole(captured(run, 2))  # what is worked out once
    few, more, most = (steps(captured(run, n * count)) for n in (1, 2, 3))
    enough = 0.005 * most.total()
    grown = {
        f"{code.co_filename}:{code.co_firstlineno}": (few[code], more[code], most[code])
        for code in most
        if most[code] - more[code] > MOST * (more[code] - few[code]) + enough
    }
    assert not grown


def calls(graph: Captured) -> int:
    """Of functions of ours, from lowering to the kernels' sources."""
    found = 0

    def called(frame, event, _):
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(OURS)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        generate_all(finished_plan(graph, Options(calibrate="off"), CPU).kernels)
    finally:
        sys.setprofile(before)
    return found


def test_equal_layers_are_planned_once():
    """Three times as many: what is left of each is to find it and to put it back."""
    few, many = captured(residual, 16), captured(residual, 48)
    calls(few)  # what is worked out once
    assert calls(many) < 1.3 * calls(few)


def scores_of(length: int):
    """Attention with a score function of so many operations."""

    def run(x, w):
        s = x @ x.transpose(-1, -2)
        for k in range(length):
            s = (s.sin(), s * 1.001)[k % 2]
        return [s.softmax(-1) @ x]

    return run


def products_of(length: int):
    """Weights that are multiplied so often: each factor is looked at once, not 2^length times."""

    def run(x, w):
        s = x @ x.transpose(-1, -2)
        e = (s - s.amax(-1, keepdim=True)).exp()
        for _ in range(length):
            e = e * e * s
        return [e @ x]

    return run


def index_of(length: int):
    def run(x, w):
        found = (x[0, 0] * 8).long()
        for _ in range(length):
            found = (found + 1) % 8
        return [x[0, found]]

    return run


def masks_of(length: int):
    def run(x, w):
        mask = x[0] > 0
        for k in range(length):
            mask = mask & (x[0] > -k * 0.1)
        return [torch.where(mask, x[0], 0.0)]

    return run


@pytest.mark.filterwarnings("error::torchweld.TorchweldWarning")
@pytest.mark.parametrize("make", [scores_of, products_of, index_of, masks_of])
@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_nothing_recurses_along_a_chain(make, target):
    graph = captured(make(80), 0, 2, 64, 16)
    device = CPU if target == "cpu" else named_target(target)
    depth = len(inspect.stack(0))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 175)  # 147 are needed, for any length
    try:
        generate_all(plan_graph(graph, Options(calibrate="off"), device)[1].kernels)
    finally:
        sys.setrecursionlimit(before)


def with_statistics(x, w):
    """Attention whose maxima and sums somebody needs, as a backward does."""
    kept = []
    for _ in w:
        s = x @ x.transpose(-1, -2)
        top = s.amax(-1, keepdim=True)
        e = (s - top).exp()
        kept += [top, e.sum(-1, keepdim=True)]
        x = (e / kept[-1]) @ x
    return [x, *kept]


def test_any_number_of_layers_of_attention_stores_its_statistics():
    """Each nest takes in two; a graph once took sixteen in all, and none if there were more."""
    graph = captured(with_statistics, 12, 2, 512, 16)
    made = plan_graph(graph, Options(calibrate="off"), CPU)[1]
    assert [k.template for k in made.kernels if k.template.startswith("attention")]
    assert sum(n.name.startswith("attention") for n in made.graph.nodes) == 12
