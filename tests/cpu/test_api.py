"""The public face: a fused module is the model, faster; everything else about it stays."""

from __future__ import annotations

import copy
import importlib.metadata
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import torchweld
from torchweld import api, pipeline
from torchweld.capture import aot
from torchweld.core.errors import UsageError
from torchweld.core.options import Options


class Net(nn.Module):
    """With a parameter, a buffer, a submodule, an attribute and a method."""

    def __init__(self):
        super().__init__()
        self.lin, self.norm, self.scale = nn.Linear(4, 4), nn.BatchNorm1d(4), 2.0
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, twice=False):
        y = self.norm(self.lin(x)) + self.shift
        return y * self.scale if twice else y

    def generate(self, x):
        return [self(x), self(x, twice=True)]


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """The graphs compiled; each runs in eager."""
    found = []

    def compile_graph(captured, options):
        found.append(captured)
        run = aot.run_eagerly(captured.module)
        run.record = (captured.name, captured.kind)
        return run

    monkeypatch.setattr(pipeline, "compile_graph", compile_graph)
    torch._dynamo.reset()
    torch.manual_seed(0)
    return found


X = torch.linspace(-1, 1, 12).reshape(3, 4)
EXAMPLES = [None, X, (X,), {"x": X}, ((X,), {}), [X]]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_gives_what_the_model_gives(examples, compiled):
    model = Net().eval()
    fused = torchweld.fuse(model, examples)
    assert len(compiled) == (examples is not None)
    with torch.no_grad():
        torch.testing.assert_close(fused(X), model(X))
        torch.testing.assert_close(fused(x=X, twice=True), model(X, True))
    assert len(compiled) == (3 if isinstance(examples, dict) else 2)


def test_is_the_model_in_every_other_way():
    model = Net()
    fused = torchweld.fuse(model)
    assert isinstance(fused, Net) and isinstance(fused, nn.Module)
    assert list(fused.state_dict()) == list(model.state_dict())
    assert [n for n, _ in fused.named_modules()] == [n for n, _ in model.named_modules()]
    assert all(a is b for a, b in zip(fused.parameters(), model.parameters()))
    fused.eval()
    assert not model.training and not model.norm.training
    fused.double()
    assert model.shift.dtype == fused.lin.weight.dtype == torch.float64
    fused.extra = 3
    assert model.extra == 3
    fused.load_state_dict({k: torch.zeros_like(v) for k, v in model.state_dict().items()})
    assert model.lin.weight.abs().sum() == 0
    assert repr(model.lin) in repr(fused)


def test_methods_of_the_model_run_fused(compiled):
    model = Net().eval()
    with torch.no_grad():
        torch.testing.assert_close(torchweld.fuse(model).generate(X), model.generate(X))
    assert len(compiled) == 2


def test_unfuse_gives_the_original_object():
    model = Net()
    keys = set(model.__dict__)
    fused = torchweld.fuse(model)
    fused(X)
    assert torchweld.unfuse(fused) is model and type(model) is Net
    assert set(model.__dict__) == keys
    assert torchweld.unfuse(model) is model
    assert torchweld.unfuse(torchweld.fuse(fused)) is model


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, copy.copy, lambda f: pickle.loads(pickle.dumps(f))]
)
@pytest.mark.parametrize("examples", [None, X])
def test_copies_share_what_is_compiled(clone, examples, compiled):
    fused = torchweld.fuse(Net().eval(), examples, numerics="eager")
    with torch.no_grad():
        expected, before = fused(X), len(compiled)
        other = clone(fused)
        assert isinstance(other, Net) and torchweld.unfuse(other) is not torchweld.unfuse(fused)
        torch.testing.assert_close(other(X), expected)
    assert len(compiled) == before + (examples is not None)  # ahead of time is for one object
    assert list(other.state_dict()) == list(fused.state_dict())


def test_deepcopy_of_a_model_with_a_fused_part():
    outer = nn.Sequential(torchweld.fuse(Net()), nn.ReLU()).eval()
    twin = copy.deepcopy(outer)
    assert twin[0].lin.weight is not outer[0].lin.weight
    torch.testing.assert_close(twin(X), outer(X))
    assert list(outer.state_dict()) == [f"0.{k}" for k in Net().state_dict()]


@pytest.mark.parametrize("examples", [None, X])
def test_hooks_run(examples):
    model, seen = Net().eval(), []
    fused = torchweld.fuse(model, examples)
    fused.register_forward_hook(lambda m, a, out: out + 1)
    model.lin.register_forward_pre_hook(lambda m, a: seen.append(1))
    with torch.no_grad():
        torch.testing.assert_close(fused(X), model(X))
    assert seen


def test_functions(compiled):
    def f(x, y):
        "Doc."
        return torch.relu(x) * y

    fused = torchweld.fuse(f, (X, X))
    torch.testing.assert_close(fused(X, X + 1), f(X, X + 1))
    assert fused.__name__ == "f" and fused.__doc__ == "Doc."
    assert torchweld.unfuse(fused) is f and len(compiled) == 1


def test_ahead_of_time_trains_through_the_other_way(compiled):
    model, twin = Net().train(), Net().train()
    twin.load_state_dict(model.state_dict())
    fused = torchweld.fuse(model, X)
    torch.testing.assert_close(
        model.norm.running_mean, twin.norm.running_mean
    )  # capture runs nothing
    fused(X).square().sum().backward()
    twin(X).square().sum().backward()
    torch.testing.assert_close(model.lin.weight.grad, twin.lin.weight.grad)
    assert [c.kind for c in compiled] == ["forward", "backward"]
    with torch.no_grad():
        torch.testing.assert_close(fused.eval()(X), model.eval()(X))
    assert [c.kind for c in compiled] == ["forward", "backward", "inference"]


def test_methods():
    class Scaled(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        @torchweld.fuse
        def forward(self, x, *, shift=0.0):
            return torch.tanh(x) * self.factor + shift

    x = torch.randn(3, 5)
    for factor in (2.0, 3.0):
        torch.testing.assert_close(Scaled(factor)(x, shift=1.0), x.tanh() * factor + 1)


@pytest.mark.parametrize("examples", [None, X])
def test_dynamic_sizes_compile_once(examples, compiled):
    model = Net().eval()
    fused = torchweld.fuse(model, examples, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5, 8):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(fused(x), model(x))
    assert len(compiled) == 1


def test_records_and_graphs(compiled):
    fused, other = torchweld.fuse(Net().train()), torchweld.fuse(Net().eval())
    fused(X).sum().backward()
    with torch.no_grad():
        other(X)
    assert [kind for _, kind in torchweld.records(fused)] == ["forward", "backward"]
    assert [kind for _, kind in torchweld.records(other)] == ["inference"]
    assert [c.kind for c in api.captured_graphs(fused)] == ["forward", "backward"]
    assert torchweld.records()[-3:] == torchweld.records(fused) + torchweld.records(other)


def test_backend_of_torch_compile(compiled):
    model = Net().eval()
    by_name = torch.compile(model, backend="torchweld", options={"numerics": "eager"})
    with torch.no_grad():
        torch.testing.assert_close(by_name(X), model(X))
    assert [c.kind for c in compiled] == ["inference"]


def test_backend_needs_no_import():
    (entry,) = [
        e
        for e in importlib.metadata.entry_points(group="torch_dynamo_backends")
        if e.name == "torchweld"
    ]
    assert entry.value == "torchweld.api:dynamo_backend"


@pytest.mark.parametrize("wrong", [3, "model", None])
def test_only_modules_and_functions(wrong):
    with pytest.raises(UsageError, match="cannot fuse"):
        torchweld.fuse(wrong)


def test_unknown_option():
    with pytest.raises(UsageError, match="numericz"):
        torchweld.fuse(Net(), numericz="eager")


def test_options_reach_the_pipeline(monkeypatch):
    seen = []
    monkeypatch.setattr(
        pipeline, "compile_graph", lambda c, o: seen.append(o) or aot.run_eagerly(c.module)
    )
    torchweld.fuse(torch.relu, options=Options(fuse=False), numerics="eager")(X)
    assert seen[0].numerics == "eager" and not seen[0].fuse


def test_inside_another_compiled_model():
    model = nn.Sequential(torchweld.fuse(Net().eval()), nn.Tanh())
    with torch.no_grad():
        expected = model(X)
        torch.testing.assert_close(torch.compile(model, backend="eager")(X), expected)


def test_import_is_cheap():
    code = "import sys, torchweld; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names():
    assert set(torchweld.__all__) <= set(dir(torchweld))
    with pytest.raises(AttributeError, match="nothing"):
        torchweld.nothing  # noqa: B018
