"""Many fused objects in one process: all are fused, those alike share a capture, and nothing is
silent."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

import torchweld
from torchweld import pipeline
from torchweld.capture import aot
from torchweld.core import events
from torchweld.fused import graphs


class Net(nn.Module):
    def __init__(self, width=4, scale=2.0):
        super().__init__()
        self.lin, self.scale = nn.Linear(width, width), scale

    def forward(self, x):
        return torch.relu(self.lin(x)) * self.scale


class Broken(Net):
    """With a graph break in a module of its own."""

    def __init__(self, width=4):
        super().__init__(width)
        self.inner = Inner()

    def forward(self, x):
        return self.inner(self.lin(x)) + 1


class Inner(nn.Module):
    def forward(self, x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()


class Record:
    """Stands for the pipeline's."""


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """The graphs compiled; each runs in eager."""
    found = []

    def compile_graph(captured, options):
        found.append(captured)
        run = aot.run_eagerly(captured.module)
        run.record = Record()
        return run

    monkeypatch.setattr(pipeline, "compile_graph", compile_graph)
    torch._dynamo.reset()
    events.clear()
    return found


def called(model, *inputs):
    """A fused `model` after a call, which gave what the model gives."""
    fused = torchweld.fuse(model)
    torch.testing.assert_close(fused(*inputs), model(*inputs))
    return fused


def test_twenty_alike_share_one_capture(compiled):
    made = [called(Net(), torch.randn(3, 4)) for _ in range(20)]
    assert [c.kind for c in compiled] == ["forward"]
    assert all(len(torchweld.records(fused)) == 1 for fused in made)
    made[7](torch.randn(3, 4)).sum().backward()
    assert [c.kind for c in compiled] == ["forward", "backward"]
    assert all(len(torchweld.records(fused)) == 2 for fused in made)


def test_the_same_cell_run_ten_times(compiled):
    model, x = Net(), torch.randn(3, 4)
    made = [called(model, x) for _ in range(10)]
    assert len(compiled) == 1
    assert all(torchweld.records(fused) for fused in made)


@pytest.mark.parametrize("kind", [Net, Broken])
def test_more_of_different_widths_than_dynamos_limit(kind, compiled):
    if kind is Broken and not aot.torch_private._APART:
        pytest.skip("frames below a call share one limit before torch 2.13")
    made = [called(kind(width), torch.randn(3, width)) for width in range(2, 13)]
    assert all(torchweld.records(fused) for fused in made)
    if kind is Net:  # none is taken for one that varies
        assert all(isinstance(n, int) for c in compiled for n in _sizes(c))


def _sizes(captured):
    nodes = captured.module.graph.find_nodes(op="placeholder")
    return [n for node in nodes for n in getattr(node.meta["val"], "shape", ())]


def test_twenty_that_differ_in_an_attribute():
    made = [called(Net(scale=float(i)), torch.randn(3, 4)) for i in range(20)]
    assert all(torchweld.records(fused) for fused in made)


def test_torchs_own_modules_and_functions():
    x = torch.randn(3, 4).abs()
    names = ["sin", "cos", "exp", "tanh", "sigmoid", "relu", "abs", "neg", "square", "log1p"]
    made = [called(getattr(torch, name), x) for name in names]
    made += [called(nn.Sequential(nn.Linear(4, n), nn.ReLU()), x) for n in range(1, 11)]
    made += [called(nn.Linear(4, n), x) for n in range(1, 11)]
    assert all(torchweld.records(fused) for fused in made)


def test_methods_and_closures():
    def scaled(factor):
        return lambda x: torch.tanh(x) * factor

    x = torch.randn(3, 4)
    made = [called(scaled(float(i)), x) for i in range(10)]
    made += [called(Net(scale=float(i)).forward, x) for i in range(10)]
    assert all(torchweld.records(fused) for fused in made)


def changed_hook(model):
    model.lin.register_forward_hook(lambda m, a, out: out + 1)


def changed_pre_hook(model):
    model.norm.register_forward_pre_hook(lambda m, a: (a[0] + 1,))


def changed_own_hook(model):
    model.register_forward_hook(lambda m, a, out: out + 2)


def changed_forward(model):
    model.forward = lambda x: x - 1


def changed_eps(model):
    model.norm.eps = 3.0


def changed_scale(model):
    model.scale = 7.0


def changed_mode(model):
    model.train(not model.training)
    model.norm.weight.requires_grad_(False)


def changed_part(model):
    model.norm = nn.Tanh()


CHANGES = [v for k, v in globals().items() if k.startswith("changed_")]


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.lin(x)) * self.scale


@pytest.mark.parametrize(("change", "when"), [
    *((change, "called") for change in CHANGES),
    *((change, ("before", "fused")[at % 2]) for at, change in enumerate(CHANGES)),
])  # fmt: skip
def test_alike_until_one_is_changed(change, when):
    x = torch.randn(3, 4)
    torchweld.fuse(Normed().eval())(x)
    kept = torchweld.fuse(Normed().eval())
    kept(x)
    model = Normed().eval()
    if when == "before":
        change(model)
    fused = torchweld.fuse(model)
    if when == "called":
        fused(x)
    if when != "before":
        change(model)
    torch.testing.assert_close(fused(x), model(x))
    torch.testing.assert_close(kept(x), torchweld.unfuse(kept)(x))


def test_what_was_compiled_goes_with_the_last_fused():
    with torch.no_grad():
        made = [called(Net(width=9), torch.randn(3, 9)) for _ in range(2)]
    record = weakref.ref(torchweld.records(made[0])[0])
    graphs.recent.clear()
    made.pop()
    gc.collect()
    assert record() is not None
    made.clear()
    gc.collect()
    assert record() is None


def test_a_fused_object_that_is_dropped_takes_its_kind_with_it(compiled):
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            called(Net(width=7), torch.randn(3, 7))
    finally:
        gc.enable()
    assert len(compiled) == 2


def test_the_limit_is_told():
    fused = torchweld.fuse(Net(), dynamic=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in range(2, 14):
            fused(torch.randn(rows, 4))
    (warning,) = [w for w in told if w.category is torchweld.TorchweldWarning]
    assert "Net runs in eager" in str(warning.message) and "limit" in str(warning.message)
    assert len([e for e in torchweld.events() if e.key.startswith("limit:")]) == 1


def test_limits_of_others_are_not_ours():
    def f(x, n):
        return x * n

    theirs = torch.compile(f, backend="eager", dynamic=False)
    called(Net(), torch.randn(3, 4))
    for rows in range(2, 14):
        theirs(torch.randn(rows), 1.0)
    assert not torchweld.events()


def test_explain_after_a_call():
    class Skipped(Net):
        @torch.compiler.disable
        def forward(self, x):
            return x + 1

    fused = torchweld.fuse(Skipped())
    assert "Nothing is compiled yet" in str(torchweld.explain(fused))
    fused(torch.randn(3))
    assert "every call so far ran in eager" in str(torchweld.explain(fused))


def test_explain_names_what_went_wrong(monkeypatch):
    def compile_graph(captured, options):
        raise ValueError("no such thing")

    monkeypatch.setattr(pipeline, "compile_graph", compile_graph)
    with pytest.warns(torchweld.TorchweldWarning):
        fused = called(Net(), torch.randn(3, 4))
    said = str(torchweld.explain(fused))
    assert "every call so far ran in eager" in said and "no such thing" in said
