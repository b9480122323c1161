"""Calls past AOTAutograd's wrappers: they do what its own way does."""

from __future__ import annotations

import sys
import weakref

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

import torchweld
from torchweld.capture import aot, steps

SEEN: list[steps.Switch] = []


@pytest.fixture(autouse=True)
def switches(monkeypatch):
    """Those made in a test."""
    SEEN.clear()

    class Seen(steps.Switch):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            SEEN.append(self)

    monkeypatch.setattr(aot.steps, "Switch", Seen)


def quick() -> int:
    """How many graphs are called with less around them."""
    return sum(switch.quick is not None for switch in SEEN)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(7, 9), nn.LayerNorm(9)

    def forward(self, x):
        return torch.tanh(self.norm(self.first(x)))


def gradients(call, inputs, seed=None, **kwargs):
    """Of all that takes part: after the call's result."""
    result = call(*inputs)
    seed = torch.linspace(-1, 1, result.numel()).view_as(result) if seed is None else seed
    wanted = [t for t in inputs if t.requires_grad]
    if isinstance(call, nn.Module):
        wanted += list(call.parameters())
    return [result, *torch.autograd.grad(result, wanted, seed, **kwargs)]


def close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


def warm(model, *shape):
    """`model` fused, after its first step, an input, and what eager gives."""
    fused, x = torchweld.fuse(model), torch.randn(*shape, requires_grad=True)
    expected = gradients(model, (x,))
    close(gradients(fused, (x,)), expected)
    return fused, x, expected


def test_steps_after_the_first_take_the_short_way():
    fused, x, expected = warm(Net(), 5, 7)
    assert quick() == 1
    for _ in range(2):
        close(gradients(fused, (x,)), expected)


@pytest.mark.parametrize("seed", [
    torch.ones(()).expand(5, 9), torch.randn(9, 5).t(), torch.randn(10, 18)[::2, ::2],
], ids=["expanded", "turned", "sliced"])  # fmt: skip
def test_gradients_come_in_any_layout(seed):
    model = Net()
    fused, x, _ = warm(model, 5, 7)
    close(gradients(fused, (x,), seed), gradients(model, (x,), seed))


def test_a_graph_is_gone_through_twice_where_it_is_kept():
    fused, x, _ = warm(Net(), 5, 7)
    result = fused(x).sum()
    once = torch.autograd.grad(result, x, retain_graph=True)
    close(torch.autograd.grad(result, x), once)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result, x)


def test_gradients_have_a_graph_but_no_gradients():
    fused, x, expected = warm(Net(), 5, 7)
    found = gradients(fused, (x,), create_graph=True)
    close(found, expected)
    assert found[1].requires_grad
    with pytest.raises(RuntimeError, match="double backward"):
        found[1].sum().backward()


def test_results_without_gradients():
    def call(x, y):
        return x.sin() * y, (x > 0).long(), x.detach() * 2, y.exp()

    fused = torchweld.fuse(call)
    x, y = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    for _ in range(3):
        found, expected = fused(x, y), call(x, y)
        assert [t.requires_grad for t in found] == [True, False, False, True]
        close(found, expected)
        close(torch.autograd.grad(found[3].sum(), y), torch.autograd.grad(expected[3].sum(), y))
    assert quick() == 1


def test_running_statistics_and_their_versions():
    def made():
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

    model, other = made(), made()
    fused = torchweld.fuse(model)
    x = torch.randn(2, 3, 6, 6)
    for _ in range(4):
        close(gradients(fused, (x,)), gradients(other, (x,)))
    close(list(model.buffers()), list(other.buffers()))
    assert quick() == 1
    before = model[1].running_mean._version
    fused(x)
    assert model[1].running_mean._version > before


def test_what_changes_between_forward_and_backward_is_noticed():
    fused, x, _ = warm(nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 2)), 5, 7)
    result = fused(x)
    with torch.no_grad():
        fused[2].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_what_is_saved_is_packed_and_freed():
    fused, x, expected = warm(Net(), 5, 7)
    kept = []

    def pack(tensor):
        packed = tensor.clone()
        kept.append(weakref.ref(packed))
        return packed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = fused(x)
    assert kept
    close([torch.autograd.grad(result, x, torch.linspace(-1, 1, 45).view(5, 9))[0]], expected[1:2])
    assert all(tensor() is None for tensor in kept)  # though `result` still has its graph


def test_checkpoints():
    fused, x, expected = warm(Net(), 5, 7)
    found = checkpoint(fused, x, use_reentrant=False)
    close([found], expected[:1])
    close(torch.autograd.grad(found, x, torch.linspace(-1, 1, 45).view(5, 9)), expected[1:2])


def test_autocast_is_in_the_graph_already():
    model = nn.Sequential(nn.Linear(7, 9), nn.Tanh())
    fused, x = torchweld.fuse(model), torch.randn(5, 7, requires_grad=True)
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, expected = fused(x), model(x)
            assert found.dtype == expected.dtype == torch.bfloat16
            close([found], [expected])
            seed = torch.ones_like(found)
            close(torch.autograd.grad(found, x, seed), torch.autograd.grad(expected, x, seed))
    assert quick() == 1


def test_results_that_are_no_new_tensors_go_the_careful_way():
    def call(x):
        y = x.sin()
        return y, y[1:], x.t()

    fused, x = torchweld.fuse(call), torch.randn(4, 3, requires_grad=True)
    for _ in range(3):
        close(fused(x), call(x))
        found, expected = fused(x), call(x)
        assert found[2]._base is x or found[2].data_ptr() == x.data_ptr()
        close(torch.autograd.grad(found[1].sum(), x), torch.autograd.grad(expected[1].sum(), x))
    assert quick() == 0


def test_inputs_that_have_no_gradient_do_not_hold_their_graph():
    """Torch frees what is behind y: a second backward through it must not be asked for."""

    def call(x, y):
        return x * 2, y.detach() * 3 + x

    fused, x = torchweld.fuse(call), torch.randn(4, requires_grad=True)
    for _ in range(3):
        y = x.exp()
        first, second = fused(x, y)
        y.sum().backward()  # frees the graph of y
        (first + second).sum().backward()


def test_sizes_that_change():
    model = Net()
    fused = torchweld.fuse(model, dynamic=True)
    for rows in (5, 6, 11, 3):
        x = torch.randn(rows, 7, requires_grad=True)
        close(gradients(fused, (x,)), gradients(model, (x,)))
    assert quick() >= 1


def test_algorithms_that_became_deterministic_are_refused_as_torch_does():
    fused, x, _ = warm(Net(), 5, 7)
    result = fused(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            result.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_compiled_autograd_keeps_the_way_that_it_knows():
    with torch._dynamo.config.patch(compiled_autograd=True):
        warm(Net(), 5, 7)
    assert quick() == 0


def test_calls_without_gradients_take_the_short_way():
    model = nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.Dropout(0.5)).eval()
    compiled, x = torch.compile(model, backend="torchweld"), torch.randn(5, 7)
    with torch.no_grad():
        close([compiled(x)], [model(x)])
    for p in model.parameters():
        p.requires_grad_(False)
    with torch.enable_grad():
        found = compiled(x)
    close([found], [model(x)])
    assert not found.requires_grad
    assert quick() == len(SEEN) >= 1


def test_running_statistics_without_gradients():
    model, other = nn.BatchNorm1d(7), nn.BatchNorm1d(7)
    compiled, x = torch.compile(model, backend="torchweld"), torch.randn(5, 7)
    with torch.no_grad():
        for _ in range(3):
            close([compiled(x)], [other(x)])
    close(list(model.buffers()), list(other.buffers()))


def test_an_inference_graph_with_views_goes_the_careful_way():
    compiled = torch.compile(lambda x: (x[1:], x + 1), backend="torchweld")
    x = torch.randn(4, 3)
    with torch.no_grad():
        view, _ = compiled(x)
        x.mul_(2)
    close([view], [x[1:]])
    assert quick() == 0


class Wrapped(torch.Tensor):
    """A tensor around a tensor, which AOTAutograd takes apart."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner) -> None:
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapped, func(*args, **kwargs))


def test_tensors_around_tensors_go_the_careful_way():
    compiled = torch.compile(lambda x: x.sin() * 2, backend="torchweld")
    for _ in range(3):
        x = Wrapped(torch.randn(3, 4))
        with torch.no_grad():
            found = compiled(x)
        assert type(found) is Wrapped
        close([found.inner], [x.inner.sin() * 2])
    assert quick() == 0


def test_a_graph_that_turns_gradients_on_has_them_where_they_are_off():
    def call(x):
        with torch.enable_grad():
            return x.sin() * 2

    fused, x = torchweld.fuse(call), torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        with torch.no_grad():
            found = fused(x)
        close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(call(x).sum(), x))
    assert quick() == 1


def test_nothing_of_python_s_is_called_between_autograd_and_the_programs():
    """`apply` looks for functorch and defaults, the engine for a `vjp`, in Python; so does what
    guards a first call."""
    fused, x, _ = warm(Net(), 5, 7)
    called: list[str] = []

    def note(frame, event, _):
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        torch.autograd.grad(fused(x).sum(), x)
    finally:
        sys.setprofile(None)
    others = {"unwrap_dead_wrappers", "_is_setup_context_defined", "apply_boxed", "_get_user_fn"}
    assert not others & set(called)
    assert len(called) < 80, called


def test_gradients_add_up_and_hooks_see_them():
    model, other = Net(), Net()
    other.load_state_dict(model.state_dict())
    fused, x, _ = warm(model, 5, 7)
    seen = []
    model.norm.weight.register_hook(lambda g: seen.append(g) or g * 2)
    other.norm.weight.register_hook(lambda g: g * 2)
    model.first.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    for _ in range(3):
        for call in (fused, other):
            call(x.detach()).pow(2).sum().backward()
        close([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
    assert len(seen) == 6
