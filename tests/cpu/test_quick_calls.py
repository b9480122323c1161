"""Calls past most of torch.compile's own wrapper do what it does (`torch_private.quick`)."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch._dynamo import eval_frame
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch.nn.modules.module import register_module_forward_hook

import torchweld
from torchweld.capture import aot, torch_private
from torchweld.capture.entry import own_copy


def _entry(fused):
    return fused._torchweld._dynamo._entry


def _is_quick(call) -> bool:
    return call.__code__.co_filename == torch_private.__file__


@pytest.fixture
def fused():
    made = torchweld.fuse(lambda x: x * 2 + 1)
    made(torch.ones(4))
    return made


def test_this_torch_is_known(fused):
    assert _is_quick(_entry(fused).call)


def test_nothing_that_only_others_need_is_called(fused):
    """Marks for the profiler, looks for exports: Python right after a kernel is slow."""
    x, called = torch.ones(4), []
    fused(x)
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name))
    try:
        fused(x)
    finally:
        sys.setprofile(None)
    assert "call" in called  # `quick`'s own
    others = {"record_pregraph_bytecode_enter", "is_exporting", "_callback_from_stance"}
    assert not others & set(called)


def test_a_wrapper_of_other_parts_stays():
    compiled = torch.compile(lambda x: x, backend="eager", fullgraph=True)
    assert torch_private.quick(compiled) is compiled
    assert torch_private.quick(len) is len


SETTINGS = ("assume_static_by_default", "automatic_dynamic_shapes")


@pytest.mark.parametrize(("dynamic", "wanted"), [(True, (False, True)), (False, (True, False))])
def test_settings_are_those_of_compilations(monkeypatch, dynamic, wanted):
    """`dynamic` is set while a graph is made, and a call sets nothing."""
    seen, make = [], aot.make_backend

    def noting(*args):
        seen.append(_settings())
        return make(*args)

    monkeypatch.setattr(aot, "make_backend", noting)
    before = _settings()
    made = torchweld.fuse(lambda x: x * 2 + 1, dynamic=dynamic)
    for rows in (4, 5, 6):
        assert torch.equal(made(torch.ones(rows)), torch.full((rows,), 3.0))
    assert _is_quick(_entry(made).call)
    assert seen == [wanted] * (1 if dynamic else 3)
    assert _settings() == before


def test_settings_end_with_a_compilation_that_fails():
    before = _settings()
    with pytest.raises(Exception, match=r"tensor|shape|size"):
        torchweld.fuse(lambda x, y: x @ y, dynamic=False)(torch.ones(2, 3), torch.ones(2, 3))
    assert _settings() == before


def _settings() -> tuple:
    return tuple(getattr(torch._dynamo.config, name) for name in SETTINGS)


def test_other_hooks_around_calls_stay():
    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(lambda x: x, backend="eager")
    assert torch_private.quick(compiled) is compiled


def test_a_stance_is_followed():
    seen = []

    def model(x):
        seen.append(torch.compiler.is_compiling())
        return x * 2

    made = torchweld.fuse(model)
    made(torch.ones(4))
    with torch.compiler.set_stance("force_eager"):
        seen.clear()
        assert torch.equal(made(torch.ones(4)), torch.full((4,), 2.0))
    assert seen == [False]


def test_an_error_leaves_nothing_behind(fused):
    before = eval_frame.set_eval_frame(None)
    eval_frame.set_eval_frame(before)
    with pytest.raises(Exception, match=r"tensor|shape|size"):
        torchweld.fuse(lambda x, y: x @ y)(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(TypeError):
        fused()
    after = eval_frame.set_eval_frame(None)
    eval_frame.set_eval_frame(after)
    assert after is before
    assert torch.equal(fused(torch.ones(4)), torch.full((4,), 3.0))


def test_inside_another_compiled_function(fused):
    outer = torch.compile(lambda x: fused(x) + 1, backend="eager")
    assert torch.equal(outer(torch.ones(4)), torch.full((4,), 4.0))


def test_other_inputs_are_compiled_again(fused):
    assert torch.equal(fused(torch.ones(2, 3)), torch.full((2, 3), 3.0))
    assert fused(torch.ones(4, dtype=torch.float64)).dtype == torch.float64
    torch._dynamo.reset()
    assert torch.equal(fused(torch.ones(5)), torch.full((5,), 3.0))


def test_hooks_of_all_modules_come_and_go():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    made, x, seen = torchweld.fuse(model), torch.randn(2, 3), []
    expected = model(x)
    torch.testing.assert_close(made(x), expected)
    hook = register_module_forward_hook(lambda module, args, result: seen.append(type(module)))
    made(x)
    assert torch.nn.Sequential in seen
    hook.remove()
    seen.clear()
    torch.testing.assert_close(made(x), expected)
    assert not seen


class Scales(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = (torch.nn.Parameter(torch.randn(4)) for _ in range(2))

    def forward(self, x):
        return x * self.p * self.q


def test_parameters_that_a_forward_keeps_are_themselves():
    """Views of them AOTAutograd would detach in each call."""
    model = Scales()
    places = {p.data_ptr() for p in model.parameters()}
    result = torchweld.fuse(model)(torch.randn(2, 4))
    kept = [t for t in result.grad_fn.saved_tensors if t.data_ptr() in places]
    assert kept and all(t.requires_grad for t in kept)


def _frames(call, *args) -> set[str]:
    """The Python functions that a call goes through."""
    called: set[str] = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_name))
    try:
        call(*args)
    finally:
        sys.setprofile(None)
    return called


def _goes_through_dynamo(call, *args) -> bool:
    return "through_dynamo" in _frames(call, *args)


def test_calls_whose_guards_hold_go_past_the_hook_into_frames():
    def model(x, *rest, scale=2.0, **others):
        return x * scale + sum(rest) + others.get("shift", 0.0)

    made, x = torchweld.fuse(model), torch.randn(3, 4)
    kinds = [
        lambda f: f(x), lambda f: f(x[:2]), lambda f: f(x, x, x), lambda f: f(x, scale=3.0),
    ]  # fmt: skip
    for _ in range(2):
        for call in kinds:
            torch.testing.assert_close(call(made), call(model))
    assert not any(_goes_through_dynamo(call, made) for call in kinds)
    assert _goes_through_dynamo(lambda: made(x, shift=1.0))


def test_what_a_function_closes_over_is_guarded():
    scale = 2.0

    def model(x, y):
        def twice(z):
            return z * scale + y  # y is a cell of the model's

        return twice(x) + y

    made, x = torchweld.fuse(model), torch.ones(3)
    assert torch.equal(made(x, x), torch.full((3,), 4.0))
    assert not _goes_through_dynamo(made, x, x)
    assert torch.equal(made(x, x * 2), torch.full((3,), 6.0))
    scale = 5.0
    assert torch.equal(made(x, x), torch.full((3,), 7.0))


def test_code_whose_entry_is_gone_is_not_run():
    """Its guards are not to be asked: they know objects by addresses, which others may have now."""
    model = torch.nn.Linear(3, 3)
    made, x = torchweld.fuse(model), torch.randn(2, 3)
    made(x)
    assert not _goes_through_dynamo(made, x)
    torch._dynamo.reset()
    assert _goes_through_dynamo(made, x)
    assert not _goes_through_dynamo(made, x)
    torch.testing.assert_close(made(x), model(x))


def test_code_whose_guards_know_an_object_that_is_gone_is_not_run(monkeypatch):
    entries_of, codes = torch_private._entries_of, []
    monkeypatch.setattr(
        torch_private, "_entries_of", lambda code: codes.append(code) or entries_of(code)
    )
    made, x, y = torchweld.fuse(lambda x: x * 2), torch.ones(3), torch.ones(4, 2)
    made(x), made(y)
    managers = [entry.guard_manager for entry in entries_of(codes[-1])]
    manager = next(m for m in managers if m.root.check({"x": x}))
    manager.extra_state.invalidate(manager.cache_entry, DeletedGuardManagerWrapper("a test"))
    for _ in range(3):
        assert torch.equal(made(x), x * 2) and torch.equal(made(y), y * 2)
    assert not _goes_through_dynamo(made, x) and not _goes_through_dynamo(made, y)


def test_a_cut_graph_needs_dynamo_in_each_call():
    def model(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin() + 1

    made, x = torchweld.fuse(model), torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(made(x), model(x))
    assert _goes_through_dynamo(made, x)


def test_an_error_of_a_ready_graph_leaves_nothing_behind():
    table = torch.randn(4, 3)
    made, ids = torchweld.fuse(lambda i: table[i] * 2), torch.tensor([1, 3])
    made(ids)
    assert not _goes_through_dynamo(made, ids)
    with pytest.raises(IndexError):
        made(ids + 2)
    before = eval_frame.set_eval_frame(None)
    eval_frame.set_eval_frame(before)
    assert not callable(before)
    torch.testing.assert_close(made(ids), table[ids] * 2)
    with pytest.raises(TypeError, match="lambda"):
        made()


# -- what Dynamo cannot compile --


def _failing(error: Exception, told: list):
    """A function whose compilation always fails, and how often that was tried."""
    tried = []

    def backend(gm, inputs):
        tried.append(gm)
        raise error

    def function(x):
        return x.sin() + 1

    def failed(code, error):
        told.append((code.co_name, error))
        return len(told) >= 2

    function = own_copy(function)  # Dynamo remembers code that failed
    compiled = torch_private.compile_apart(function, backend, None)
    return torch_private.quick(compiled, failed), function, tried


def test_it_runs_in_eager_and_is_tried_no_more_than_told():
    told, x = [], torch.randn(5)
    call, function, tried = _failing(ValueError("no such graph"), told)
    for count in (1, 2, 2, 2):
        assert torch.equal(call(x), function(x))
        assert len(tried) == len(told) == count
    (name, error), _ = told
    assert name.startswith("function") and "no such graph" in str(error)


def test_without_memory_it_fails_as_it_did():
    call, _, _ = _failing(MemoryError(), told := [])
    with pytest.raises(RuntimeError, match="MemoryError"):
        call(torch.ones(3))
    assert not told


def test_a_fused_function_is_told_of_and_tried_again(monkeypatch):
    torch._dynamo.reset()
    fused = torchweld.fuse(lambda x, y: (x @ y).relu())
    good, bad = (torch.randn(3, 4), torch.randn(4, 5)), (torch.randn(3, 4), torch.randn(5, 4))
    with pytest.raises(RuntimeError, match="cannot be multiplied"), \
            pytest.warns(torchweld.TorchweldWarning, match="runs in eager"):
        fused(*bad)
    torch.testing.assert_close(fused(*good), (good[0] @ good[1]).relu())
    assert torchweld.records(fused)  # the next inputs are compiled


def test_functions_of_functions_that_dynamo_fails_at():
    def loss(w, x):
        return (w * x).sum().tanh()

    def step(w, x):
        with torch.no_grad():
            return torch.func.vmap(torch.func.hessian(loss), (0, 0))(w, x).relu() + 1

    torch._dynamo.reset()
    w, x = torch.randn(3, 4), torch.randn(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torchweld.fuse(step)(w, x)
    torch.testing.assert_close(found, step(w, x))
