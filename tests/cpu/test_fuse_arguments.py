"""What `fuse` is given, and what it says of what does not fit: at the call of `fuse`, in one
line."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import torchweld
from torchweld import pipeline
from torchweld.capture import aot
from torchweld.core import events
from torchweld.core.errors import UsageError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x, *, twice=False):
        y = self.norm(self.body(x))
        return y * 2 if twice else y

    def training_step(self, batch, index):
        return self.body(batch).square().mean()

    def steps(self, x):
        return self(x) + self(x)

    def prepared(self, x):
        return x[:1]


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """(kind, options) of the graphs compiled; each runs in eager."""
    found = []

    def compile_graph(captured, options):
        found.append((captured.kind, options))
        run = aot.run_eagerly(captured.module)
        run.record = captured.kind
        return run

    monkeypatch.setattr(pipeline, "compile_graph", compile_graph)
    torch._dynamo.reset()
    events.clear()
    return found


def silently(call):
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        return call()


@pytest.mark.parametrize("inputs", [(), (X, X, X), {"y": X}, {"x": X, "thrice": True}])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_arguments_that_the_model_does_not_take(inputs, mode):
    model = getattr(Net(), mode)()
    with pytest.raises(UsageError, match=r"example inputs do not fit Net\.forward"):
        silently(lambda: torchweld.fuse(model, inputs))


def test_arguments_that_a_function_does_not_take():
    with pytest.raises(UsageError, match="do not fit"):
        torchweld.fuse(lambda x, y: x + y, X)
    torchweld.fuse(torch.relu, X)  # no signature is known


@pytest.mark.parametrize("x", [torch.randn(3, 5), "text", torch.randn(4, 4, 4, 4)])
def test_inputs_that_the_model_does_not_run_with(x):
    model = Net().eval()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with pytest.raises(UsageError, match="Net does not run with the example inputs"):
        silently(lambda: torchweld.fuse(model, (x,)))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_that_cannot_be_exported_only_warns():
    class Depends(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    with pytest.warns(torchweld.TorchweldWarning, match="not ahead of time"):
        torchweld.fuse(Depends().eval(), X)


def test_decorators_that_change_the_signature():
    def with_default(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, y=1.0, **kwargs)

        return wrapper

    @with_default
    def f(x, *, y):
        return x + y

    torchweld.fuse(f, X)


@pytest.mark.parametrize("mode, wanted", [
    (None, {}), ("default", {}), ("reduce-overhead", {"cuda_graphs": True}),
    ("max-autotune", {"tune_seconds": 30.0}),
    ("max-autotune-no-cudagraphs", {"cuda_graphs": False}),
])  # fmt: skip
def test_modes_of_torch_compile(mode, wanted, compiled):
    run = torch.compile(Net().eval(), backend="torchweld", mode=mode)
    with torch.no_grad():
        silently(lambda: run(X))
    assert all(getattr(compiled[0][1], name) == value for name, value in wanted.items())


def test_an_unknown_mode_warns(compiled):
    run = torch.compile(Net().eval(), backend="torchweld", mode="fastest")
    with torch.no_grad(), pytest.warns(torchweld.TorchweldWarning, match="'fastest' is ignored"):
        run(X)
    assert compiled


def test_decorator_with_options(compiled):
    @torchweld.fuse(numerics="eager")
    def f(x):
        return x.sin() * 2

    torch.testing.assert_close(f(X), X.sin() * 2)
    assert f.__name__ == "f" and compiled[0][1].numerics == "eager"


def test_methods_are_fused_beside_forward(compiled):
    model = Net().train()
    fused = torchweld.fuse(model, methods=("training_step",))
    torch.testing.assert_close(fused.training_step(X, 0), model.training_step(X, 0))
    assert [kind for kind, _ in compiled] == ["forward"] == torchweld.records(fused)
    fused.training_step(X, 0).backward()
    assert model.body.weight.grad is not None
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        torch.testing.assert_close(other.training_step(X, 0), model.training_step(X, 0))
        assert torchweld.records(other) == ["forward"]


def test_a_method_past_the_fused_forward_warns_once():
    fused = torchweld.fuse(Net().eval())
    with pytest.warns(torchweld.TorchweldWarning, match=r"methods=\('training_step',\)"):
        fused.training_step(X, 0)
    silently(lambda: fused.training_step(X, 0))


def test_other_methods_do_not_warn():
    fused = torchweld.fuse(Net().eval())
    torch.testing.assert_close(silently(lambda: fused.steps(X)), torchweld.unfuse(fused).steps(X))
    torch.testing.assert_close(silently(lambda: fused.prepared(X)), X[:1])


class Doubled(Net):
    """Its method is a wrapper around an object that has no code of its own."""

    @functools.wraps(functools.partial(torch.mul, other=2))
    def doubled(self, x):
        return x * 2


def test_a_method_around_a_callable_object_runs():
    fused = torchweld.fuse(Doubled().eval())
    torch.testing.assert_close(silently(lambda: fused.doubled(X)), X * 2)


@pytest.mark.parametrize("methods", [("train_step",), ("body",)])
def test_methods_that_are_none(methods):
    with pytest.raises(UsageError, match="Net has no method"):
        torchweld.fuse(Net(), methods=methods)
    with pytest.raises(UsageError, match="has no methods"):
        torchweld.fuse(torch.relu, methods=methods)


def test_the_class_has_the_name_of_the_original():
    fused = torchweld.fuse(Net())
    assert type(fused).__name__ == "Net" and fused.__class__.__qualname__ == "Net"
    assert fused._get_name() == "Net" and repr(fused).startswith("FusedNet(")


def test_a_checkpoint_of_transformers_names_the_original(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=8)
    fused = torchweld.fuse(transformers.GPT2LMHeadModel(config))
    fused.save_pretrained(tmp_path)
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert read.architectures == ["GPT2LMHeadModel"]


@pytest.mark.parametrize("example", [None, X])
def test_forward_derivatives_are_eagers(example):
    model = nn.Linear(4, 3)
    fused = torchweld.fuse(model, example)
    with torch.no_grad(), forward_ad.dual_level():
        given = forward_ad.make_dual(X, torch.ones_like(X))
        wanted = forward_ad.unpack_dual(model(given)).tangent
        torch.testing.assert_close(forward_ad.unpack_dual(fused(given)).tangent, wanted)


def test_inputs_that_lie_in_memory_with_the_other_sign():
    z = torch.randn(3, 4, dtype=torch.complex64)
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU()).eval()
    for fused in (torchweld.fuse(model), torchweld.fuse(model, z.imag)):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for x in (z.imag, z.conj().imag):
                torch.testing.assert_close(fused(x), model(x))
