"""The ahead-of-time form: what it follows, what makes it capture again, and when it steps aside."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import torchweld
from applied import Apply
from torchweld.capture import aot, export_
from torchweld.core import events
from torchweld.core.options import Options


class Harness:
    """A model ahead of time, counting captures and the calls that went the other way."""

    def __init__(self, model, *args, **kwargs):
        self.captured, self.others = [], 0
        self.model = model
        self.fused = export_.AheadOfTime(model, self._compile, Options(), None, self._otherwise)
        with torch.no_grad():
            self.fused.prepare(args, kwargs)
        assert len(self.captured) == 1

    def _compile(self, captured, options):
        self.captured.append(captured)
        return aot.run_eagerly(captured.module)

    def _otherwise(self, *args, **kwargs):
        self.others += 1
        return self.model(*args, **kwargs)

    def check(self, *args, **kwargs):
        with torch.no_grad():
            expected, expected_spec = tree_flatten(self.model(*args, **kwargs))
            out, spec = tree_flatten(self.fused(*args, **kwargs))
        assert spec == expected_spec
        for left, right in zip(out, expected, strict=True):
            if isinstance(right, torch.Tensor):
                torch.testing.assert_close(left, right)
            else:
                assert left == right
        return len(self.captured), self.others


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    events.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", events.TorchweldWarning)
        yield


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2)).eval()


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def test_captures_once():
    h = Harness(mlp(), X)
    assert h.check(X) == h.check(X + 1) == (1, 0)
    assert h.captured[0].static_inputs == {0, 1, 2, 3}


def test_follows_weights():
    h = Harness(mlp(), X)
    with torch.no_grad():
        h.model[0].weight.mul_(3)
        assert h.check(X) == (1, 0)
        h.model.load_state_dict(mlp().state_dict())
        assert h.check(X) == (1, 0)
        h.model[3].weight = nn.Parameter(torch.ones(2, 8))
        assert h.check(X) == (1, 0)
        h.model[3].weight.data = torch.full((2, 8), 2.0)
        assert h.check(X) == (1, 0)


def test_follows_a_replaced_module():
    h = Harness(mlp(), X)
    h.model[3] = nn.Linear(8, 5)
    assert h.check(X) == (2, 0)
    h.model.append(nn.ReLU())
    assert h.check(X) == (3, 0)


def test_follows_a_missing_parameter_that_is_set():
    h = Harness(nn.Linear(4, 4, bias=False), X)
    h.model.bias = nn.Parameter(torch.ones(4))
    assert h.check(X) == (2, 0)


@pytest.mark.parametrize("other", [
    torch.zeros(5, 4), X.double(), torch.zeros(4, 3).t(), torch.zeros(1, 4).expand(3, 4),
])  # fmt: skip
def test_another_kind_of_input_is_captured_again(other):
    h = Harness(nn.Softmax(-1), X)
    assert h.check(other) == (2, 0)
    assert h.check(other) == h.check(X) == (2, 0)


def test_dtype_of_the_model_changes():
    h = Harness(mlp(), X)
    h.model.double()
    assert h.check(X.double()) == (2, 0)


def test_training_flags_are_part_of_the_signature():
    h = Harness(mlp(), X)
    h.model[2].train()
    with torch.no_grad():
        assert (h.fused(X) != h.fused(X)).any()
    assert (len(h.captured), h.others) == (2, 0)
    h.model[2].eval()
    assert h.check(X) == (2, 0)


def test_whether_sums_must_repeat_is_part_of_the_signature(monkeypatch):
    """On a GPU, kernels may add by atomics where they need not."""
    given = torch.randn(3, 4)
    harness = Harness(mlp(), given)
    for strict, captures in ((False, 1), (True, 2), (True, 2), (False, 2)):
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda s=strict: s)
        assert harness.check(given) == (captures, 0)


def test_too_many_signatures_step_aside_with_one_warning():
    h = Harness(nn.Softmax(-1), torch.ones(1))
    for n in range(2, export_.MAX_SIGNATURES + 1):
        h.check(torch.ones(n))
    with pytest.warns(events.TorchweldWarning, match="kinds of inputs") as caught:
        for n in range(20, 24):
            h.check(torch.ones(n))
    assert len(caught) == 1 and h.others == 4 and len(h.captured) == export_.MAX_SIGNATURES


def test_gradients_step_aside():
    h = Harness(mlp(), X)
    assert h.fused(X).requires_grad and h.others == 1
    h.model.requires_grad_(False)
    assert not h.fused(X).requires_grad and h.others == 1
    assert h.fused(X.clone().requires_grad_()).requires_grad and h.others == 2


def test_autocast_and_transforms_step_aside():
    h = Harness(mlp(), X)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert h.fused(X).dtype == torch.bfloat16
        torch.testing.assert_close(torch.vmap(h.fused)(X), h.model(X))
    assert h.others == 2


def test_hooks_step_aside():
    h, seen = Harness(mlp(), X), []
    handle = h.model[1].register_forward_hook(lambda *_: seen.append(1))
    assert h.check(X) == (1, 1) and len(seen) == 2
    handle.remove()
    assert h.check(X) == (1, 1)


def test_what_would_step_aside_is_not_prepared():
    def captured(model):
        fused = export_.AheadOfTime(model, compile_graph, Options(), None, model)
        fused.prepare((X,), {})
        return found

    def compile_graph(captured, options):
        found.append(captured)
        return aot.run_eagerly(captured.module)

    found = []
    assert not captured(mlp().train())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not captured(mlp())
    hooked = mlp()
    hooked[0].register_forward_pre_hook(lambda *_: None)
    assert not captured(hooked)
    assert captured(mlp())


def test_inference_mode():
    h = Harness(mlp(), X)
    with torch.inference_mode():
        for x in (X, X.clone()):
            torch.testing.assert_close(h.fused(x), h.model(x))
    assert h.check(X) == (1, 0)


def test_buffers_are_written_back():
    h = Harness(nn.BatchNorm1d(4).train(), X)
    reference = nn.BatchNorm1d(4).train()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(h.fused(X), reference(X))
    assert (len(h.captured), h.others) == (1, 0)
    for left, right in zip(h.model.buffers(), reference.buffers()):
        torch.testing.assert_close(left, right)


def test_a_cache_is_written_in_place():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 8, 4))

        def forward(self, x, at):
            self.keys[:, at] = x
            return (x @ self.keys.transpose(1, 2)).softmax(-1)

    x, model, reference = torch.randn(2, 1, 4), Cache(), Cache()
    h = Harness(model, x, torch.tensor([0]))
    assert not model.keys.any()  # capture runs nothing
    with torch.no_grad():
        for position in (0, 5, 3):
            at = torch.tensor([position])
            torch.testing.assert_close(h.fused(x, at), reference(x, at))
            torch.testing.assert_close(model.keys, reference.keys)
    targets = [str(n.target) for n in h.captured[0].module.graph.nodes]
    assert "aten.index_put_.default" in targets and "aten.copy_.default" not in targets
    assert (len(h.captured), h.others) == (1, 0)


class Nested(nn.Module):
    def forward(self, pair, *, scale=2.0, table=None, name="a"):
        left, right = pair
        extra = 0 if table is None else table["t"]
        return {"sum": left + right * scale + extra, "parts": (left, [right, None, name])}


def test_nested_inputs_and_outputs():
    h = Harness(Nested(), (X, X + 1), scale=3.0)
    assert h.check((X, X), scale=3.0) == (1, 0)
    assert h.check((X, X), scale=4.0) == (2, 0)
    assert h.check((X, X), scale=4.0, table={"t": X}) == (3, 0)
    assert h.check((X, X), scale=4.0, name="b") == (4, 0)
    out = h.fused((X, X), scale=4.0, name="b")
    assert out["parts"][1][2] == "b"


def test_keyword_arguments_in_another_order():
    class Two(nn.Module):
        def forward(self, a, b):
            return a - b

    h = Harness(Two(), a=X, b=X * 2)
    h.check(b=X, a=X * 3)
    h.check(X, X + 1)
    h.check(X, b=X + 1)
    assert h.others == 0


def test_tied_weights_and_one_input_given_twice():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x, y):
            return self.b(self.a(x)) + y

    h = Harness(Tied(), X, X + 1)
    assert h.check(X, X) == h.check(X, X + 2) == (1, 0)
    h.model.b.weight = nn.Parameter(torch.eye(4))
    h.check(X, X)


def test_a_module_in_two_places():
    """torch.export has its weight under the name that was used first, not the one found first."""

    class Block(nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.shared = shared

        def forward(self, x):
            return self.shared(x).relu()

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Linear(4, 4)
            self.blocks = nn.Sequential(Block(self.shared), Block(self.shared))

        def forward(self, x):
            return self.blocks(x)

    h = Harness(Shared(), X)
    assert h.check(X) == (1, 0)
    h.model.blocks[0].shared = nn.Linear(4, 4)
    h.check(X)
    assert h.others == 0


def test_constants_of_the_trace():
    class Table(nn.Module):
        def forward(self, x):
            return x + torch.tensor([1.0, 2.0, 3.0, 4.0])

    assert Harness(Table(), X).check(X) == (1, 0)


def test_a_model_that_writes_to_its_input_steps_aside():
    class Writes(nn.Module):
        def forward(self, x):
            return x.add_(1)

    fused = export_.AheadOfTime(Writes(), None, Options(), None, Writes())
    x = torch.zeros(2)
    with pytest.warns(events.TorchweldWarning, match="writes to its inputs"):
        fused.prepare((x,), {})
    torch.testing.assert_close(fused(x), torch.ones(2))
    torch.testing.assert_close(x, torch.ones(2))


def test_a_model_that_cannot_be_exported_steps_aside():
    class Branches(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x - 1

    fused = export_.AheadOfTime(Branches(), None, Options(), None, Branches())
    with pytest.warns(events.TorchweldWarning, match="goes through torch.compile"):
        fused.prepare((X,), {})
    torch.testing.assert_close(fused(X), Branches()(X))


def test_autocast_inside_the_model():
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.lin(x)
            return y.float() + x

    assert Harness(Inside(), X).check(X) == (1, 0)


def test_exported_graph_is_plain_aten():
    h = Harness(mlp(), X)
    nodes = h.captured[0].module.graph.nodes
    assert all(
        isinstance(n.target, torch._ops.OpOverload) for n in nodes if n.op == "call_function"
    )
    assert all(isinstance(n.meta["val"], torch.Tensor) for n in nodes if n.op == "placeholder")


class Counting(nn.Linear):
    """Keeps what `keep(module, result)` keeps in plain attributes."""

    def __init__(self, keep) -> None:
        super().__init__(4, 4)
        self.steps, self.last, self.log, self.keep = 0, None, [], keep
        self.count, self.counts = torch.zeros(1), [torch.zeros(1)]  # no buffers

    def forward(self, x):
        y = super().forward(x) + self.steps + self.count + self.counts[0]
        self.keep(self, y)
        return y


@pytest.mark.parametrize(
    "keep",
    [
        lambda m, y: setattr(m, "steps", m.steps + 1),
        lambda m, y: setattr(m, "last", y),
        lambda m, y: m.log.append(y),
        lambda m, y: m.count.add_(1),
        lambda m, y: m.counts[0].add_(1),
    ],
    ids=["number", "tensor", "list", "in place", "in place in a list"],
)
def test_a_model_that_assigns_to_attributes_is_torch_compiles(keep):
    model, other = Counting(keep), Counting(keep)
    fused = export_.AheadOfTime(model, aot.run_eagerly, Options(), None, lambda x: model(x))
    other.load_state_dict(model.state_dict())
    x = torch.randn(3, 4)
    with torch.no_grad():
        with pytest.warns(events.TorchweldWarning, match="its forward assigns to"):
            fused.prepare((x,), {})
        for _ in range(3):
            torch.testing.assert_close(fused(x), other(x))
    assert (model.steps, len(model.log), model.last is None, model.count) == (
        other.steps, len(other.log), other.last is None, other.count,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_recurrent_layers_are_exported_in_silence(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harness = Harness(kind(4, 8, 2).eval(), torch.randn(5, 3, 4))
    assert harness.check(torch.randn(5, 3, 4)) == (1, 0)


class Literal(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = torch.tensor(3.0)

    def forward(self, x):
        return torch.minimum(x, torch.tensor(0.5)) * self.held


def test_a_number_written_as_a_tensor_is_known_and_one_that_is_held_is_followed():
    model = Literal()
    h = Harness(model, X)
    names = [n.name for n in h.captured[0].module.graph.nodes if n.op == "placeholder"]
    assert len(names) == 2  # held, x
    h.check(X)
    model.held.fill_(5.0)
    assert h.check(X) == (1, 0)


@pytest.mark.parametrize("function", [
    lambda x: x.std(unbiased=False), lambda x: x.var(unbiased=False), lambda x: torch.std(x, False),
    lambda x: x.std(), lambda x: torch.var(x, 0, False), lambda x: torch.var_mean(x, False)[0],
])  # fmt: skip
@pytest.mark.parametrize("shape", [(35,), (7, 5)], ids=str)
def test_the_deviation_of_all_elements_is_biased_if_asked(function, shape):
    """torch.export keeps `std(x, unbiased)`, whose second argument was taken for a dimension: the
    unbiased one for a vector, and eager for a matrix."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    events.clear()
    assert torch.allclose(torchweld.fuse(Apply(function), (x,))(x), function(x), rtol=1e-5)
    assert not events.events()


class Windowed(nn.Module):
    """torch.export leaves out `contiguous`: the library's attention has heads inside of positions.
    Written out, it has not by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        i = torch.arange(x.shape[1])
        mask = (i[:, None] - i).abs() < 9
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).contiguous().view(x.shape[0], -1, 64))


def test_attention_that_is_written_out_is_laid_out_as_the_librarys():
    torch.compiler.reset()
    model, x = Windowed().eval(), torch.randn(2, 70, 64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", events.TorchweldWarning)
        fused = torchweld.fuse(model, x)
        torch.testing.assert_close(fused(x), model(x))
