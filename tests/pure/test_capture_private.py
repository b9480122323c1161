"""Which private names of torch capture depends on, and why; the file fails on a release that moves
one."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import must_recompute
from torch.utils.checkpoint import CheckpointPolicy

from torchweld.capture import torch_private
from torchweld.capture.tracing import Listener

WHY = {
    "eval_frame": "a call without what hardly ever holds; one guard around a compiled graph",
    "fx_tracing": "whether something traces the call",
    "aot_autograd": "functionalised forward and backward graphs for a Dynamo backend",
    "min_cut_rematerialization_partition": "what the backward computes again",
    "TracingContext": "which inputs are parameters and buffers",
    "core_aten_decompositions": "the decomposition table",
    "OpOverload": "tells ATen operations from Python functions",
    "decompositions": "states of an LSTM, as Dynamo is told of them",
    "get_decompositions": "batch norms, which the core table leaves whole",
    "ConvertFrameReturn": "what Dynamo fails at runs in eager, frame by frame",
    "dynamo_errors": "the same: but not what the user asked for",
    "TorchDynamoException": "Dynamo's control flow passes through a backend",
    "TensorGuards": "one call that compares two hundred tensors with what was captured",
    "FakeTensorMode": "models without data, to be planned for a device that is not here",
    "enable_python_dispatcher": "one call traced as run_decompositions traces all",
    "FunctionalTensorMode": "the same: what is written to becomes a result",
    "to_fun": "the same",
    "from_fun": "the same",
    "OutputType": "which results of a graph are new tensors: a training step with less around it",
    "MemoryFormatMeta": "the same: how the gradients of results are laid out",
    "GRADS_COME_BOXED": "the same: gradients in a list that can be emptied",
    "is_transformed": "the same: whether vmap or grad is at work",
    "interpreter": "the same: whether a backward is called within vmap or grad",
    "is_deterministic": "the same: whether algorithms have to be deterministic",
    "bare_apply": "the same: `apply` looks for functorch in Python",
    "_entries_of": "a call whose guards hold goes past Dynamo's hook into Python's frames",
    "without_autocast": "the same: graphs have their casts in them",
    "autocasts": "the same",
    "has_data_mutation": "what one call has written to, running statistics among it",
    "_compiling_state_context": "what run_decompositions sets around its trace",
    "_ignore_backend_decomps": "the same: no operation of oneDNN's or cuDNN's own",
    "_override_composite_implicit_decomp": "the same: what composite operators are made of",
    "_split_decomp_table_to_cia_and_python_decomp": "the same, of a table",
    "_use_lazy_graph_module": "a traced call is copied, not called: its Python is not written",
    "_size_of": "bytes of what a forward keeps, as the partitioner counts them",
    "FakeTensor": "tells plain tensors from subclasses",
    "trace_rules": "which functions Dynamo does not compile by themselves",
    "reset_code": "what was compiled for a model goes with the model",
    "_has_any_global_hook": "a call of a module is more than its forward",
    "fx_config": "sizes that may be one, from the first trace on",
    "_flex_attention": "a call of flex_attention as Dynamo writes it",
    "_math_attention": "what flex_attention means, in plain operations",
    "aot_export_joint_simple": "the graph of a function and of its gradients, without Dynamo",
    "guards": "they are not timed for a log while a fused object is compiled",
    "callback": "when Dynamo begins and ends a compilation: what it captures is set for that time",
    "TensorifyScalarRestartAnalysis": "a backend may have its graph traced once more",
    "_OF_THREAD": "whether this thread traces, without a call",
    "GenerationTracker": "what a call of torch.compile counts",
    "UserFunctionVariable": "methods that a program binds by hand and keeps in an object",
    "UserMethodVariable": "the same",
    "with_effects": "checks of results, which are calls like others",
    "check_linalg": "the same",
    "functorch_config": "views are recomputed, so that parameters reach the backward as themselves",
}


@pytest.mark.parametrize("name", sorted(WHY))
def test_name_is_there(name):
    assert hasattr(torch_private, name)


def test_every_private_import_is_explained():
    lines = inspect.getsource(torch_private).splitlines()
    imports = [x for x in lines if x.startswith(("from torch", "import torch")) and "._" in x]
    names = (x.split(" as ")[-1].split(" import ")[-1].split(",") for x in imports)
    assert {name.strip() for group in names for name in group} <= set(WHY)


def test_backend_takes_our_arguments():
    assert callable(aot_autograd(fw_compiler=None, partition_fn=None, decompositions={}))
    assert isinstance(functorch_config.recompute_views, bool)


def test_the_partitioner_reads_our_tag():
    node = torch.fx.Graph().placeholder("x")
    assert not must_recompute(node)
    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    assert must_recompute(node)


def test_fake_tensors_have_no_data():
    with torch_private.fake_tensors():
        made = torch.empty(1 << 40, dtype=torch.bfloat16)  # two terabytes
        assert (made + 1).shape == (1 << 40,)


def test_surroundings():
    assert torch_private.plain_surroundings()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch_private.plain_surroundings()
    seen = []
    torch.vmap(lambda x: seen.append(torch_private.plain_surroundings()) or x)(torch.ones(2))
    assert seen == [False]


def test_guards_are_timed_for_others_only(monkeypatch):
    timed, ours = [], [True]
    monkeypatch.setattr(torch_private, "_TIME_GUARDS", lambda *_: timed.append(1) or 0.0)
    monkeypatch.setattr(torch_private.guards, "profile_guard_manager", torch_private._TIME_GUARDS)
    Listener(lambda: ours[0], lambda *_: None).listen()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert timed == []
    ours[0] = False
    torch.compile(lambda x: x + 2, backend="eager")(torch.ones(2))
    assert timed == [1]
    torch._dynamo.reset()  # forgets the listener


class _Cache:
    length = 3

    def twice(self):
        return 2 * self.length


def _half(self):
    return self.length // 2


@pytest.mark.skipif(torch_private._BIND is None, reason="torch before 2.13")
def test_methods_that_are_bound_by_hand():
    def first_call(x, cache):
        cache.size, cache.again = _half.__get__(cache), cache.twice
        return x + cache.size()

    ours, x = [True], torch.ones(2)
    Listener(lambda: ours[0], lambda *_: None).listen()
    cache = _Cache()
    assert torch.compile(first_call, backend="eager", fullgraph=True)(x, cache).tolist() == [2, 2]
    cache.length = 8
    assert (cache.size(), cache.again()) == (4, 16) and cache.size.__self__ is cache
    torch._dynamo.reset()
    ours[0] = False
    with pytest.raises(AttributeError, match="_half"):  # the day this passes, the patch can go
        torch.compile(first_call, backend="eager")(x, _Cache())
    torch._dynamo.reset()


def test_tensor_check():
    x, y = torch.randn(3, 4), torch.randn(5)
    check = torch_private.TensorCheck([x, y, x])
    assert check.passes([x, y, x])
    other = torch.randn(3, 4)
    assert check.passes([other, y, other])
    assert not check.passes([x, y, other])  # no longer one tensor
    assert not check.passes([x.double(), y, x])
    plain = torch_private.TensorCheck([x, y])
    assert plain.passes([other, y])
    assert not plain.passes([torch.randn(4, 3).t(), y])
    assert not plain.passes([torch.randn(3, 5), y])
    assert not plain.passes([None, y])


def test_a_size_of_any_kind_is_traced():
    """A symbol for what is 2 in the trace holds for 1, and what the model itself asks is kept."""

    class Model(torch.nn.Module):
        def forward(self, x, y):
            return x + 1 if y.shape[0] > 1 else x

    dims = {0: torch.export.Dim.AUTO}
    with torch_private.any_sizes(), torch.no_grad():
        program = torch.export.export(
            Model(), (torch.ones(2, 3), torch.ones(4, 1)), dynamic_shapes=(dims, dims)
        )
    sizes = [n.meta["val"].shape[0] for n in program.graph.find_nodes(op="placeholder")]
    guards, ranges = torch_private.size_guards(sizes[0])
    symbols = [size.node.expr for size in sizes]
    assert ranges[symbols[0]][0] <= 1

    def hold(*values: int) -> bool:
        told = dict(zip(symbols, values))
        inside = all(ranges[s][0] <= n for s, n in told.items())
        return inside and all(bool(guard.subs(told)) for guard in guards)

    assert hold(1, 2)
    assert not hold(2, 1)


def test_a_models_own_questions_are_heard():
    """Torch has no guard for a question that it has asked itself before, and says no place of those
    that is_contiguous asks."""

    class Model(torch.nn.Module):
        def forward(self, x, y):
            flat = x.t().reshape(-1)  # asks whether x has one row
            x = flat if x.shape[0] == 1 else flat * 2
            return x, y if y.t().is_contiguous() else y * 2

    to_bool, dims = torch.SymBool.__bool__, {0: torch.export.Dim.AUTO}
    with torch_private.any_sizes(), torch.no_grad():
        program = torch.export.export(
            Model(), (torch.ones(3, 4), torch.ones(5, 4)), dynamic_shapes=(dims, dims)
        )
    assert torch.SymBool.__bool__ is to_bool and "is_contiguous" not in vars(torch.Tensor)
    assert not torch_private.fx_config.backed_size_oblivious
    sizes = [n.meta["val"].shape[0] for n in program.graph.find_nodes(op="placeholder")]
    guards = {str(guard) for guard in torch_private.size_guards(sizes[0])[0]}
    assert {f"Ne({size.node.expr}, 1)" for size in sizes} <= guards


def test_traces_in_two_threads_hear_and_leave_torch_as_it_was():
    to_bool = torch.SymBool.__bool__
    one, other = torch_private.any_sizes(), torch_private.any_sizes()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert torch.SymBool.__bool__ is not to_bool
    other.__exit__(None, None, None)
    assert torch.SymBool.__bool__ is to_bool and "is_contiguous" not in vars(torch.Tensor)
    assert not torch_private.fx_config.backed_size_oblivious
