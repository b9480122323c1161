"""Equal layers are planned once and put back: the plan is that of the whole graph."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld import pipeline
from torchweld.capture import aot
from torchweld.capture.captured import ROUNDED, Captured
from torchweld.capture.lower import lower
from torchweld.capture.parts import parts
from torchweld.capture.repeated import repeated
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Comp, View
from torchweld.ir.stretches import Run, linked, longest
from torchweld.pipeline import finished_plan, plan_graph
from torchweld.plan.decisions import Plan
from torchweld.rewrite.flow import rename
from torchweld.targets.find import named_target, target_of

WIDTH, HEADS = 32, 2
OPTIONS = Options(calibrate="off")


def attention(x, w, mask=None):
    """By hand, so that it is written as a nest."""
    q, k, v = (F.linear(x, m).unflatten(-1, (HEADS, 16)).transpose(1, 2) for m in (w, w.t(), w))
    scores = q @ k.transpose(-1, -2) * 0.25
    scores = scores if mask is None else scores + mask
    joined = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    x = F.layer_norm(x + F.linear(joined, w), (WIDTH,), w[0], w[1])
    return x + F.linear(F.gelu(F.linear(x, w)), w.t(), w[2])


def gated(x, w, scale=None):
    """Llama's, with a number that all layers compute from one input."""
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w[0]
    y = y if scale is None else y * scale.cos() + torch.roll(y, 1, -1) * scale.sin()
    return x + F.linear(F.silu(F.linear(y, w)) * F.linear(y, w.t()), w)


def block(x, w):
    kernel = w.view(WIDTH, WIDTH, 1, 1).expand(WIDTH, WIDTH, 3, 3).contiguous()
    y = F.batch_norm(F.conv2d(x, kernel, padding=1), w[0], w[1], w[2], w[3])
    return torch.relu(x + y)


def alternate(x, w, mask):
    """Every second layer does something else."""
    for k, m in enumerate(w):
        x = attention(x, m, mask if k % 2 else None)
    return [x]


def in_turn(layer):
    def run(x, w, *shared):
        for m in w:
            x = layer(x, m, *shared)
        return [x]

    return run


def between_others(x, w, mask):
    """Unequal neighbours, and one in the middle of many."""
    x = block(x.view(2, 2, WIDTH, WIDTH).repeat(1, 16, 1, 1), w[0])[:, :2].reshape(x.shape)
    for k, m in enumerate(w):
        x = gated(x, m) if k == 3 else attention(x, m, mask)
    return [x.sin(), x[0] @ w[-1]]


def all_results(x, w):
    found = []
    for m in w:
        x = gated(x, m)
        found += [x, x.sum(-1)]
    return found


def one_weight(x, w):
    for _ in range(10):
        x = gated(x, w[0])
    return [x]


def captured(run, count: int, *shared, x=None, symbolic: bool = False) -> Captured:
    x = torch.randn(2, 64, WIDTH) if x is None else x
    flat = [x, *shared, *(torch.randn(WIDTH, WIDTH) for _ in range(count))]

    def called(flat):
        x, *rest = flat
        return run(x, rest[len(shared) :], *rest[: len(shared)])

    mode = "symbolic" if symbolic else "fake"
    module = make_fx(functionalize(called), tracing_mode=mode, _allow_non_fake_inputs=True)(flat)
    return Captured(module, "test", "inference", frozenset(range(len(shared) + 1, len(flat))))


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 64), torch.nn.Linear(64, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.relu(x + self.norm(self.convolution(x)))


def trained(count: int, layer=Layer, x=None) -> list[Captured]:
    """Forward and backward."""
    found = []

    def compile_graph(graph, options):
        found.append(graph)
        return aot.run_eagerly(graph.module)

    torch.compiler.reset()
    model = torch.nn.Sequential(*(layer() for _ in range(count)))
    backend = aot.make_backend(compile_graph, OPTIONS)
    x = torch.randn(2, 64, WIDTH) if x is None else x
    torch.compile(model, backend=backend)(x).sum().backward()
    return found


def device_of(target: str):
    return target_of("cpu") if target == "cpu" else named_target(target)


def told(plan: Plan) -> list:
    """Kernels and calls in order, with what makes each and its seconds, by buffers in the order of
    first use; inputs by position."""
    graph, choices = plan.graph, {c.kernel: c for c in plan.choices}
    names = {name: f"input{k}" for k, name in enumerate(graph.inputs) if name}

    def named(buffers):
        found = {b: names.setdefault(b, f"buffer{len(names)}") for b in dict.fromkeys(buffers)}
        return found, [replace(graph.buffers[b], name=n) for b, n in found.items()]

    lines = []
    for node in graph.nodes:
        own, buffers = named((*node.reads, *node.writes))
        title = re.sub(r"_\d+$", "", node.name)
        choice = choices.get(node.name)
        how = choice and (choice.template, choice.schedule, choice.predicted_us, choice.reason)
        lines.append((replace(rename(node, own), name=title, origins=()), buffers, how))
    views = [o for o in graph.outputs if isinstance(o, View)]
    return [*lines, *(replace(o, buffer=named([o.buffer])[0][o.buffer]) for o in views)]


MASK = torch.randn(64, 64)
SHARED = torch.randn(64, WIDTH)
IMAGE = torch.randn(2, WIDTH, 8, 8)
CASES = {
    "attention": (lambda: captured(in_turn(attention), 8), "cpu", "H100"),
    "gated": (lambda: captured(in_turn(gated), 10), "cpu", "H100"),
    "block": (lambda: captured(in_turn(block), 14, x=IMAGE), "cpu", "H100"),
    "alternate": (lambda: captured(alternate, 16, MASK), "H100"),
    "between others": (lambda: captured(between_others, 16, MASK), "cpu"),
    "all results": (lambda: captured(all_results, 10), "H100"),
    "one weight": (lambda: captured(one_weight, 1), "cpu"),
    "sizes of the call": (lambda: captured(in_turn(attention), 9, MASK, symbolic=True), "H100"),
}


@cache
def case(name: str) -> Captured:
    """Captured once for all targets: tracing takes longer than planning does."""
    return CASES[name][0]()


def compared(graph: Captured, target: str) -> Plan:
    whole = plan_graph(graph, OPTIONS, device_of(target))[1]
    layers = repeated(graph)
    assert layers is not None and layers.count
    made = finished_plan(graph, OPTIONS, device_of(target))
    check_graph(made.graph)
    assert told(made) == told(whole)
    assert sorted(k.template for k in made.kernels for _ in k.uses) == sorted(
        k.template for k in whole.kernels for _ in k.uses
    )
    return made


@pytest.fixture
def only_put_back(monkeypatch):
    """The whole graph is planned for comparison alone."""
    monkeypatch.setattr(pipeline, "plan_graph", None)


def test_steps_are_equal_where_they_share_things_alike():
    steps = [("read", "x"), ("add", "xa"), ("add", "ab"), ("add", "bc"), ("add", "cb")]
    numbers = linked(steps, lambda thing: thing == "x")
    assert numbers[2] == numbers[3] and len(set(numbers)) == 4
    assert longest([7, 1, 2, 1, 2, 1, 9, 1]) == Run(1, 6, 2)
    assert longest([1, 2, 3]) is None


def test_layers_that_something_behind_them_reads_are_not_left_out():
    def run(x, w):
        found = [x]
        for m in w:
            found.append(gated(found[-1], m))
        return [torch.cat(found)]

    assert repeated(captured(run, 13)) is None


def test_a_layer_whose_results_are_rounded_is_not_like_one_whose_are_not():
    graph = captured(in_turn(gated), 13)
    count = repeated(graph).count
    products = graph.module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    products[len(products) // 2].meta[ROUNDED] = True
    found = repeated(graph)
    assert found is None or found.count < count


@pytest.mark.parametrize("name, target", [(n, t) for n, (_, *ts) in CASES.items() for t in ts])
def test_a_plan_with_layers_put_back_is_that_of_the_whole_graph(name, target, only_put_back):
    compared(case(name), target)


def test_so_is_that_of_a_training_step(only_put_back):
    for graph, target in zip(trained(17), ("H100", "cpu"), strict=True):
        compared(graph, target)


def test_so_is_the_backward_of_convolutions_with_batch_norms(only_put_back):
    compared(trained(18, Block, torch.randn(2, 8, 8, 8))[1], "cpu")


def _main_and_writes(plan: Plan) -> tuple[list, list]:
    """What is told of all but the writes to inputs, and the nodes that do these."""
    inputs = {name for name in plan.graph.inputs if name}
    writes = [n for n in plan.graph.nodes if inputs.intersection(n.writes)]
    nodes = tuple(n for n in plan.graph.nodes if n not in writes)
    return told(replace(plan, graph=replace(plan.graph, nodes=nodes))), writes


def test_running_statistics_are_planned_apart_and_layers_put_back(monkeypatch):
    forward = trained(18, Block, torch.randn(2, 8, 8, 8))[0]
    whole = plan_graph(forward, OPTIONS, device_of("cpu"))[1]
    monkeypatch.setattr(pipeline, "plan_graph", None)
    made = finished_plan(forward, OPTIONS, device_of("cpu"))
    check_graph(made.graph)
    assert made.graph.inputs == whole.graph.inputs
    assert all(made.graph.buffers[n].frozen == whole.graph.buffers[n].frozen
               for n in made.graph.inputs if n)  # fmt: skip
    (nodes, writes), (whole_nodes, whole_writes) = map(_main_and_writes, (made, whole))
    assert nodes == whole_nodes
    assert made.graph.nodes[-len(writes) :] == tuple(writes)
    assert len(writes) <= len(whole_writes)
    assert sorted(b for n in writes for b in n.writes) == sorted(
        b for n in whole_writes for b in n.writes
    )
    assert {name for k in made.kernels for name, _ in k.uses} == {
        n.name for n in made.graph.nodes if isinstance(n, Comp)
    }
    about = {d.kernel for d in made.choices}
    assert about.issuperset(n.name for n in writes)


def test_what_the_last_part_writes_is_no_parameter_that_stays():
    """A kernel may read those before the kernels in front of it have ended."""
    forward = trained(18, Block, torch.randn(2, 8, 8, 8))[0]
    main = lower(forward, OPTIONS, part=parts(forward).main).graph
    written = {n.args[0].name for n in forward.module.graph.nodes if n.name.startswith("copy_")}
    read = written.intersection(main.inputs)
    assert len(read) == 36 and not any(main.buffers[n].frozen for n in read)


def written_at_the_end(run, *shapes) -> Captured:
    """Of a function that writes to its first argument."""
    args = [torch.randn(s) for s in shapes]
    module = make_fx(functionalize(run), tracing_mode="fake")(*args)
    return Captured(module, "test", "inference")


def test_writes_are_apart_only_if_little_is_passed_on():
    def average(state, x):
        state.mul_(0.9).add_(x.exp().mean(0), alpha=0.1)
        return [x.sin()]

    found = parts(written_at_the_end(average, (4,), (64, 4)))
    assert [n.name for n in found.last.given] == ["mean"] and len(found.main.results) == 2

    def cache(state, x):
        state[2:6] = x.exp()
        return [state.sin()]

    assert parts(written_at_the_end(cache, (64, 4), (4, 4))) is None

    def replaced(state, x):
        state.copy_(x.exp())
        return [x.sin()]

    assert parts(written_at_the_end(replaced, (64, 4), (64, 4))) is None
    assert parts(captured(in_turn(gated), 2)) is None


def test_running_statistics_are_written_together_and_not_kept_for_the_backward():
    forward, backward = trained(6, Block, torch.randn(2, 8, 8, 8))
    written = {n.args[1] for n in forward.module.graph.nodes if n.name.startswith("copy_")}
    kept = forward.module.graph.output_node().args[0]
    assert len(written) == 18 and not written.intersection(kept)
    plan = finished_plan(forward, OPTIONS, device_of("cpu"))
    assert sum("copy" in n.name for n in plan.graph.nodes) == 1
    unused = torch.ops.aten.native_batch_norm_backward.default
    calls = backward.module.graph.find_nodes(op="call_function", target=unused)
    assert len(calls) == 6 and all(call.args[3:5] == (None, None) for call in calls)
