"""Every private name of torch that capture uses, so that a new release is checked in one place.

`tests/pure/test_capture_private.py` says which names and why; it fails on a release that moves one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

import sympy
import torch
import torch._functorch.config as functorch_config
import torch.fx._symbolic_trace as fx_tracing
import torch.fx.experimental._config as fx_config
from torch._C._dynamo.guards import TensorGuards
from torch._decomp import core_aten_decompositions, decompositions, get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import callback, eval_frame, guards, trace_rules
from torch._dynamo import exc as dynamo_errors
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import reset_code
from torch._dynamo.exc import TensorifyScalarRestartAnalysis, TorchDynamoException
from torch._dynamo.mutation_guard import GenerationTracker
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.variables import UserFunctionVariable, UserMethodVariable
from torch._export.utils import _compiling_state_context
from torch._functorch._aot_autograd.functional_utils import from_fun, has_data_mutation, to_fun
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta, OutputType
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._functorch.partitioners import _size_of, min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._higher_order_ops.flex_attention import flex_attention as _flex_attention
from torch._higher_order_ops.flex_attention import math_attention as _math_attention
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.export._trace import _ignore_backend_decomps
from torch.export.exported_program import (
    _override_composite_implicit_decomp,
    _split_decomp_table_to_cia_and_python_decomp,
)
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    ShapeEnv,
    StatelessSymbolicContext,
    free_unbacked_symbols,
)
from torch.nn.modules.module import _has_any_global_hook

from torchweld.capture import functions
from torchweld.core.torch_private import pytree

OpOverload = torch._ops.OpOverload
OperatorBase = torch._ops.OperatorBase  # those of higher order too
_TORCH = os.path.dirname(torch.__file__)
with_effects = torch.ops.higher_order.with_effects  # (token, operation, ...) -> token, result
check_linalg = torch.ops.aten._linalg_check_errors.default
flex_attention = _flex_attention  # what Dynamo calls
flex_attention_by_parts = _math_attention  # the same in plain operations

_LEFT_OUT = [  # interpolation in torch 2.11: as calls where autograd does not take it apart
    torch.ops.aten.upsample_linear1d,
    torch.ops.aten.upsample_bilinear2d,
    torch.ops.aten.upsample_trilinear3d,
    torch.ops.aten.native_batch_norm,
    torch.ops.aten._batch_norm_with_update,
    torch.ops.aten._batch_norm_with_update_functional,
    torch.ops.aten._batch_norm_no_update,
    torch.ops.aten.batch_norm_backward,
]

Compiler = Callable[[torch.fx.GraphModule, Sequence], Callable]

# Dynamo's own control flow (restart the analysis, skip the frame): never ours to swallow.
DynamoControl = TorchDynamoException
# The one of them that a backend may raise to have its graph traced once more.
TraceAgain = TensorifyScalarRestartAnalysis


# What Dynamo writes for `F.pad`.
native_pad = torch._C._nn.pad


def core_decompositions() -> dict:
    """A fresh {OpOverload: function}: torch's core ATen table, and the normalisations and
    interpolations that it leaves out."""
    return {**core_aten_decompositions(), **get_decompositions(_LEFT_OUT)}


def trace_with_autograd(
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    partition: Callable,
    decompositions: dict,
) -> Callable:
    """A Dynamo backend that traces forward and backward together, functionalises them and hands
    each part to its compiler.

    Where autograd need not see a mutation of an input, it is a `copy_` at the end of the graph.
    Views are recomputed in the backward rather than saved, so that parameters reach it as
    themselves.
    """
    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )

    def traced(gm: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
        with functorch_config.patch(recompute_views=True):
            made = backend(gm, example_inputs)
        return eval_frame.innermost_fn(made)  # Dynamo wraps what it is given in the same guard

    return traced


# For a share of 0 the partitioner keeps nothing at all: no seeds of random numbers either, which it
# then draws anew in the backward (torch 2.13).
_LEAST_SHARE = 1e-9


def min_cut_partition(joint: torch.fx.GraphModule, inputs, share: float = 1.0, **kwargs):
    """(forward, backward): what is cheap is computed again in the backward, by a minimum cut over
    the bytes saved. `share`, 0 to 1: of these bytes; below 1 more is computed again, chosen by its
    operations for each byte (a knapsack)."""
    with functorch_config.patch(activation_memory_budget=max(share, _LEAST_SHARE)):
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def bytes_kept(forward: torch.fx.GraphModule, results: int) -> int:
    """Of the tensors that `forward` makes and gives behind its first `results` outputs, at the
    sizes seen at capture."""
    kept = dict.fromkeys(forward.graph.output_node().args[0][results:])
    return sum(_size_of(n) for n in kept if n is not None and n.op != "placeholder")


def static_input_positions() -> frozenset[int]:
    """During a compiler's call: positions of the forward's inputs that are parameters or
    buffers."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    return frozenset(context.fw_metadata.static_input_indices)


def number_of_results() -> int | None:
    """During the forward compiler's call: how many of its outputs autograd or the user sees; those
    after them are kept for the backward. None if it is not known."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return None
    return context.fw_metadata.num_forward


@dataclass(frozen=True, slots=True)
class Tangent:
    """A gradient that the backward takes: of the result at `position`, in the memory format
    `format`, or where that is None in this shape with these strides."""

    position: int
    format: torch.memory_format | None
    shape: Sequence[int] | None
    strides: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Plain:
    """What autograd must know of a graph whose results are new tensors, and that changes no input
    in a way that autograd sees. `opaque`: results without gradients; `unsafe_views`: results that
    views inside the graph have made; `numbers`: how many sizes are kept for the backward;
    `leaves`: of each input, whether a gradient of None says nothing to autograd; `autocast`: it was
    on; `deterministic`: as the backward was traced, None if it does not matter."""

    results: int
    opaque: tuple[int, ...]
    unsafe_views: tuple[int, ...]
    numbers: int
    tangents: tuple[Tangent, ...]
    leaves: tuple[bool, ...]
    autocast: bool
    deterministic: bool | None


def are_plain(inputs: Sequence) -> bool:
    """What Dynamo's graph is traced with are tensors of no subclass, and sizes."""
    return all(type(t) in _PLAIN_INPUTS for t in inputs)


def is_plain_graph() -> bool:
    """During a compiler's call: the results of its graph are new tensors, and it changes nothing
    but memory of inputs that autograd does not watch."""
    context = TracingContext.try_get()
    return (
        torch.__version__.startswith(_READ)
        and context is not None
        and context.fw_metadata is not None
        and _is_plain(context.fw_metadata)
    )


def plain_step() -> Plain | None:
    """During the forward compiler's call: its graph as a plain one, if it is that."""
    if not is_plain_graph() or _packs_what_is_saved():
        return None
    if torch._dynamo.config.compiled_autograd:  # which knows AOTAutograd's function, and no other
        return None
    meta = TracingContext.get().fw_metadata
    outputs = meta.output_info
    taking = [i for i, info in enumerate(outputs) if _takes_gradient(info)]
    formats = [getattr(t, "memory_format", None) for t in meta.subclass_tangent_meta]
    if len(formats) != len(taking) or not all(type(f) is MemoryFormatMeta for f in formats):
        return None
    return Plain(
        results=meta.num_forward,
        opaque=tuple(i for i, info in enumerate(outputs) if not info.requires_grad),
        unsafe_views=tuple(meta.unsafe_view_out_indices),
        numbers=meta.num_symints_saved_for_bw or 0,
        tangents=tuple(
            Tangent(i, f.memory_format, f.size, f.stride) for i, f in zip(taking, formats)
        ),
        leaves=tuple(i.is_leaf or not i.requires_grad for i in meta.input_info),
        autocast=autocasts(),
        deterministic=meta.deterministic,
    )


_PLAIN_INPUTS = (torch.Tensor, torch.nn.Parameter, FakeTensor, int, torch.SymInt)


def _is_plain(meta) -> bool:
    """`meta` is AOTAutograd's record of a graph's results and mutations."""
    ours = (OutputType.non_alias, OutputType.unsafe_view_alias)
    none = (
        "num_mutated_inp_runtime_indices", "num_intermediate_bases", "num_outputs_aliased",
        "num_graphsafe_rng_states", "num_outputs_rng_offset", "num_backward_tokens", "tokens",
        "is_rng_op_functionalized", "num_tensors_saved_with_no_vc_check",
        "num_opaque_objects_saved_for_bw",
        "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
    )  # fmt: skip
    return (
        not any(getattr(meta, name, None) for name in none)
        and all(i.output_type in ours and issubclass(i.raw_type, torch.Tensor)
                for i in meta.output_info)
        and not any(i.mutates_metadata or i.mutates_storage_metadata for i in meta.input_info)
        and meta.num_forward == meta.num_forward_returns == len(meta.output_info)
    )  # fmt: skip


def _takes_gradient(info) -> bool:
    return getattr(info, "requires_grad_for_backward", info.requires_grad)


def _packs_what_is_saved() -> bool:
    """Hooks are on that pack saved tensors: torch may have traced them into the graph."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


GRADS_COME_BOXED = hasattr(torch.autograd.Function, "boxed_grads_call")
autocasts = torch._C._is_any_autocast_enabled
without_autocast = torch._C._DisableAutocast
is_transformed = torch._C._are_functorch_transforms_active


def make_no_zeros(ctx) -> None:
    """No gradients of zeros are made for results that have none."""
    ctx._materialize_non_diff_grads = False


# None outside vmap and grad; whether algorithms have to be deterministic. The public functions are
# Python around these.
interpreter = torch._C._functorch.peek_interpreter_stack
is_deterministic = torch._C._get_deterministic_algorithms


def refuse_backward() -> None:
    """Errors: RuntimeError, where AOTAutograd refuses a backward."""
    if interpreter() is not None:
        raise RuntimeError("the backward of a compiled graph is called within vmap or grad, which "
                           "is not supported: put these inside the compiled function")  # fmt: skip
    raise RuntimeError("torch.use_deterministic_algorithms(True) was set between a forward and "
                       "its backward, which was compiled without")  # fmt: skip


def bare_apply(function: type[torch.autograd.Function]) -> Callable:
    """`function.apply` without what it looks at in each call, in Python: functorch, defaults of
    arguments. The engine, too, calls its backward without looking for a `vjp` first."""
    name = "apply_boxed" if GRADS_COME_BOXED else "apply"
    setattr(function._backward_cls, name, function.backward)
    return super(torch.autograd.Function, function).apply


def is_view(node: torch.fx.Node) -> bool:
    """The operation's result may share memory with an argument."""
    return isinstance(node.target, OpOverload) and any(
        r.alias_info is not None for r in node.target._schema.returns
    )


def is_mutable(node: torch.fx.Node) -> bool:
    """The operation writes to an argument."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


# From torch 2.13 on, frames below a call do not share the compiled graphs of other calls either.
_APART = {
    name: True
    for name in ("isolate_recompiles",)
    if name in inspect.signature(torch.compile).parameters
}


def compile_apart(function: Callable, backend: Callable, dynamic: bool | None) -> Callable:
    """torch.compile, whose compiled graphs count for this call of it alone where torch can do
    that."""
    return torch.compile(function, backend=backend, dynamic=dynamic, **_APART)


# Told of code that Dynamo cannot compile; says whether to try no more, or None: once more, now.
Failed = Callable[[CodeType, Exception], bool | None]
_PARTS_OF_A_CALL = {"callback", "fn", "is_fx_symbolic_tracing", "is_jit_tracing", "self"}
_READ = ("2.11.", "2.12.", "2.13.")  # releases whose wrapper was read for `quick`
_SET_APART = getattr(eval_frame, "set_eval_frame_isolate_recompiles_id", None)  # from 2.13 on
_STANCE = eval_frame._stance
_OF_THREAD = torch._guards._TLS
_LAYERS = torch._C._functorch.get_dynamic_layer_stack_depth  # transforms that are in force
_INCLUDED = torch._C._dispatch_tls_local_include_set  # keys of the dispatcher
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set
_POP_LAYERS = torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth
_FX_FLAG = "_is_fx_tracing_flag"
_OF_SIZES_FROM_DATA = (GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound)
_GRAPH = "__compiled_fn_"  # globals that Dynamo's code calls


def quick(compiled: Callable, failed: Failed | None = None) -> Callable:
    """`compiled`, made by torch.compile from a function, with less around each call. What Dynamo
    cannot compile runs in eager, function by function, after `failed` was told.

    Torch looks in every call at what hardly ever is so: whether something traces or exports, which
    stance was chosen. Right after a kernel that code is no longer in the caches, and its calls take
    20 of 60 us. Here such a call goes to `compiled`. So does every call where torch is not known
    to do just this: other versions."""
    cells = getattr(compiled, "__closure__", None) or ()
    parts = dict(zip(getattr(getattr(compiled, "__code__", None), "co_freevars", ()), cells))
    if set(parts) != _PARTS_OF_A_CALL or not torch.__version__.startswith(_READ):
        return compiled
    if not (hasattr(torch.compiler, "_is_exporting_flag") and hasattr(fx_tracing, _FX_FLAG)):
        return compiled
    context = parts["self"].cell_contents
    if context.fullgraph or context.export or context.error_on_graph_break is not None:
        return compiled
    of_dynamic = getattr(context, "_dynamic", None) is not None  # a setting, in a hook of its own
    if type(_STANCE)() != _STANCE or len(context.enter_exit_hooks) != 1 + of_dynamic:
        return compiled  # chosen before torchweld was imported; other settings
    *settings, count = context.enter_exit_hooks
    count()  # patches Module.__init__, once; later calls only count
    function = parts["fn"].cell_contents
    callback = _lean(parts["callback"].cell_contents, settings, failed)
    return functools.wraps(compiled)(_quick_call(compiled, function, callback, context))


# What the user asked for, or what other programs than this one must hear of.
_NOT_SUPPRESSED = (
    MemoryError, torch.OutOfMemoryError, dynamo_errors.FailOnRecompileLimitHit,
    dynamo_errors.RecompileError, dynamo_errors.ResetRequired,
)  # fmt: skip


def _is_not_suppressed(error: Exception) -> bool:
    return any(isinstance(e, _NOT_SUPPRESSED) for e in _with_causes(error))


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            inner = getattr(error, "inner_exception", None)  # of a backend
            waiting += [error.__cause__, error.__context__, inner]


def _forget_frames(error: Exception) -> None:
    """Ends what the frames of `error` have begun: contexts that are left when they are freed."""
    for cause in _with_causes(error):
        traceback.clear_frames(cause.__traceback__)


def _lean(callback: Callable, settings: Sequence[Callable], failed: Failed | None) -> Callable:
    """Dynamo's compiler of frames, with `settings` for as long as it compiles: torch sets them
    around each call, which costs 5 us, and nothing else reads them. What is compiled does not look
    for stances and exports again when it calls a graph."""

    @functools.wraps(callback)
    def compile_frame(frame, *args, **kwargs):
        undo = [enter() for enter in settings]
        try:
            made = _attempted(callback, failed, frame, *args, **kwargs)
        finally:
            for leave in reversed(undo):
                leave()
        if made.guarded_code is not None:
            for name in made.guarded_code.code.co_names:
                if name.startswith(_GRAPH):
                    frame.f_globals[name] = _out_of_sight(frame.f_globals[name])
        return made

    compile_frame._torchdynamo_orig_backend = callback  # by which Dynamo finds the backend
    return compile_frame


def _attempted(callback: Callable, failed: Failed | None, frame, *args, **kwargs):
    """What `callback` makes of a frame. Where it fails, nothing of the frame has run yet: it runs
    in eager, as with Dynamo's `suppress_errors`."""
    layers, gradients = _LAYERS(), torch.is_grad_enabled()
    with torch._C._ForceDispatchKeyGuard(_INCLUDED(), _EXCLUDED()):
        try:
            return callback(frame, *args, **kwargs)
        except Exception as error:
            if failed is None or _is_not_suppressed(error):
                raise
            no_more = failed(frame.f_code, error)
            # Dynamo leaves these as they were where it failed, or sets them when the error goes.
            _forget_frames(error)
            _POP_LAYERS(layers)
            torch.set_grad_enabled(gradients)
    if no_more is None:
        return _attempted(callback, failed, frame, *args, **kwargs)
    return ConvertFrameReturn(apply_to_code=no_more)


def is_of_sizes_from_data(error: Exception) -> bool:
    """Whether Dynamo or a fake tensor could not go on with a size that depends on data."""
    return any(isinstance(e, _OF_SIZES_FROM_DATA) for e in _with_causes(error))


def _out_of_sight(disabled: Callable) -> Callable:
    """`disabled`, made by torch.compiler.disable, with less around each call."""
    graph, set_callback = disabled._torchdynamo_orig_callable, eval_frame.set_eval_frame

    @functools.wraps(disabled)
    def run(*args):
        before = set_callback(None)
        try:
            return graph(*args)
        finally:
            set_callback(before)

    eval_frame.skip_code(run.__code__)  # Dynamo would compile it
    return run


def _is_unusual() -> bool:
    """Something traces or exports, or another stance was chosen."""
    return (
        eval_frame._stance is not _STANCE
        or torch.compiler._is_exporting_flag
        or fx_tracing._is_fx_tracing_flag
        or _OF_THREAD.__dict__.get("tracing_context") is not None
        or torch._C._is_tracing()
    )


def _quick_call(compiled: Callable, function: Callable, callback, context) -> Callable:
    apart = getattr(context, "_isolate_recompiles_id", None)
    set_callback, depth_of, pop_to = eval_frame.set_eval_frame, _LAYERS, _POP_LAYERS
    locals_of = functions.locals_of(function)
    ready: tuple[_Ready, ...] = ()
    count = 0

    def call(*args, **kwargs):
        if _is_unusual():
            return compiled(*args, **kwargs)
        before, depth = set_callback(None), depth_of()
        try:
            if ready:
                found = locals_of(*args, **kwargs)
                for known in ready:
                    if known.manager.cache_entry is not None and known.accepts(found):
                        return known.run(*args, **kwargs)
            return through_dynamo(args, kwargs)
        finally:
            set_callback(None)
            pop_to(depth)
            set_callback(before)

    def through_dynamo(args: tuple, kwargs: dict):
        apart_before = None if _SET_APART is None else _SET_APART(apart)
        GenerationTracker.generation += 1
        try:
            with torch._C._ForceDispatchKeyGuard(_INCLUDED(), _EXCLUDED()):
                set_callback(callback)
                return function(*args, **kwargs)
        finally:
            set_callback(None)
            if _SET_APART is not None:
                _SET_APART(apart_before)
            look()

    def look() -> None:
        nonlocal ready, count
        entries = [] if locals_of is None else _entries_of(function.__code__)
        if len(entries) != count or any(known.manager.cache_entry is None for known in ready):
            made = (_Ready.of(entry, function) for entry in entries[:_MOST_READY])
            ready, count = tuple(filter(None, made)), len(entries)

    return call


_entries_of = getattr(
    torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list", lambda code: []
)  # what Dynamo compiled for it, the latest first
_MOST_READY = 8  # as many as Dynamo compiles, if its limit is not raised
_RESUMES = "__resume_at"  # globals that Dynamo's code calls where a graph was cut


@dataclass(frozen=True, slots=True)
class _Ready:
    """One of the codes that Dynamo made of a function, to be called without Dynamo: it hooks into
    Python for each call, and takes 5 us around the guards. `accepts`: these, of a function's
    locals. They count as long as the manager has its entry: Dynamo takes that away where an object
    that it guards is gone."""

    manager: object
    accepts: Callable[[dict], bool]
    run: Callable

    @classmethod
    def of(cls, entry, function: Callable) -> _Ready | None:
        """None for code that calls what Dynamo has to see, and for what is gone."""
        code, manager = entry.code, entry.guard_manager
        if code is None or getattr(manager, "cache_entry", None) is None:
            return None
        graphs = [name for name in code.co_names if name.startswith(_GRAPH)]
        if len(graphs) != 1 or any(name.startswith(_RESUMES) for name in code.co_names):
            return None
        if code.co_freevars != function.__code__.co_freevars:
            return None
        run = functions.with_code(function, code, function.__closure__)
        return cls(manager, manager.root.check, run)


def skipped_by_dynamo(function: Callable) -> bool:
    """Dynamo does not compile calls of this function by themselves: torch's own, those of the
    standard library."""
    return trace_rules.check(function)


def forget_compiled(code: CodeType) -> None:
    """Frees what Dynamo compiled for `code`: it never does that by itself, for the generated code
    refers to the original."""
    reset_code(code)


def calls_forward_alone(module: torch.nn.Module) -> bool:
    """Calling `module` does what its class's `forward` does: no hooks of its own, no `forward` of
    its own, not compiled in place."""
    own = module.__dict__  # looked at in each call: a loop over _HOOKS takes twice as long
    return not (
        own.get("_forward_hooks")
        or own.get("_forward_pre_hooks")
        or own.get("_backward_hooks")
        or own.get("_backward_pre_hooks")
        or "forward" in own
        or own.get("_compiled_call_impl")
    )


def forward_is_the_class_own(module: torch.nn.Module) -> bool:
    """Its class says what `forward` does: nobody has put another into it, or compiled it."""
    own = module.__dict__
    return "forward" not in own and not own.get("_compiled_call_impl")


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of_all_modules() -> bool:
    """Some hook is registered for every module of the process."""
    return bool(_has_any_global_hook())


def hooks_below(module: torch.nn.Module) -> Iterator[tuple]:
    """(module, where, hook) of each hook of its modules, as names and identities."""
    for name, part in module.named_modules():
        for where in _HOOKS:
            for hook in (part.__dict__.get(where) or {}).values():
                yield name, where, id(hook)


# What is called before each of Dynamo's compilations; torch._dynamo.reset() empties it.
START_CALLBACKS = callback.callback_handler.start_callbacks


def around_compilations(start: Callable, end: Callable) -> None:
    """From now on `start(details)` is called before each of Dynamo's compilations, and `end` after
    it. Asked for twice, they are called once."""
    handler = callback.callback_handler
    if start not in START_CALLBACKS:
        handler.register_start_callback(start)
        handler.register_end_callback(end)


def set_dynamo(name: str, value: bool) -> bool:
    """One of Dynamo's settings; gives what it was."""
    was = getattr(torch._dynamo.config, name)
    if was != value:
        setattr(torch._dynamo.config, name, value)
    return was


_TIME_GUARDS = guards.profile_guard_manager


def time_guards(wanted: bool) -> None:
    """Whether Dynamo times the guards of what it compiles, for its log. It empties the processor's
    caches for that: 24 of the 42 ms that it takes to compile a function of two operations."""
    guards.profile_guard_manager = _TIME_GUARDS if wanted else lambda *_: 0.0


_BIND = getattr(UserFunctionVariable, "tp_descr_get_impl", None)  # None before torch 2.13


class _HandBound(UserMethodVariable):
    """A method that is written out as MethodType(function, object)."""

    def reconstruct(self, codegen) -> None:
        codegen.add_push_null(lambda: codegen.load_import_from("types", "MethodType"))
        codegen(UserFunctionVariable(self.fn, source=self.source_fn))
        codegen(self.obj)
        codegen.call_function(2, False)


def _bound(function: UserFunctionVariable, tx, obj, owner):
    method = _BIND(function, tx, obj, owner)
    found = getattr(type(getattr(obj, "value", None)), function.fn.__name__, None)
    if found is function.fn or method.source is None or function.source is None:
        return method
    return _HandBound(function.fn, obj, source_fn=function.source)


def find_methods_by_name(wanted: bool) -> None:
    """Whether Dynamo believes that a method is an attribute of its object, of the function's name.
    One that is bound by hand (`cache.length = f.__get__(cache)`) is not: if the program keeps it,
    the compiled function raises AttributeError."""
    if _BIND is not None:
        UserFunctionVariable.tp_descr_get_impl = _BIND if wanted else _bound


_ONE_LAYER = decompositions.one_layer_lstm


def _one_layer_lstm(inp, hidden, params, has_biases, reverse=False):
    out, states = _ONE_LAYER(inp, hidden, params, has_biases, reverse)
    return out, tuple(state.view_as(given) for state, given in zip(states, hidden))


def find_states_of_lstm(wanted: bool) -> None:
    """Whether what Dynamo finds out about an LSTM's states is as torch has it. In torch 2.11 they
    have an axis too many where oneDNN does not compute the layer (on a GPU, in training): a program
    that asks for their sizes is told others, and a second LSTM refuses them."""
    decompositions.one_layer_lstm = _ONE_LAYER if wanted else _one_layer_lstm


@contextlib.contextmanager
def states_of_lstm() -> Iterator[None]:
    """They are as torch has them, where a model is exported and taken apart."""
    find_states_of_lstm(False)
    try:
        yield
    finally:
        find_states_of_lstm(True)


_BREAKS = tuple(
    logging.getLogger(f"torch._dynamo.{part}.__graph_breaks")
    for part in ("symbolic_convert", "convert_frame")
)


class GraphBreaks(logging.Handler):
    """While it listens, `heard(place, reason)` is told where Dynamo cuts a graph, and why: lines of
    its log, which is not written unless the user wants it."""

    _SAYS = re.compile(r"user code at (.+)\nGraph Break Reason: (.+?)\n+User code traceback", re.S)

    def __init__(self, heard: Callable[[str, str], None]) -> None:
        super().__init__(logging.DEBUG)
        self._heard, self._silenced = heard, []

    def emit(self, record: logging.LogRecord) -> None:
        if said := self._SAYS.search(record.getMessage()):
            self._heard(*said.groups())

    def listen(self) -> None:
        for log in _BREAKS:
            log.addHandler(self)
            if not log.isEnabledFor(logging.DEBUG):
                self._silenced.append((log, log.level, log.propagate))
                log.setLevel(logging.DEBUG)
                log.propagate = False

    def stop(self) -> None:
        for log in _BREAKS:
            log.removeHandler(self)
        while self._silenced:
            log, level, log.propagate = self._silenced.pop()
            log.setLevel(level)


def sizes_from_data(value) -> frozenset:
    """The symbols in the sizes of a traced value (in a sequence of them) that depend on data."""
    return frozenset(free_unbacked_symbols(value)) if value is not None else frozenset()


_LIMIT_HIT = "torch._dynamo hit config."


def on_recompile_limit(heard: Callable[[str], None]) -> None:
    """From now on `heard(what Dynamo says)` is called whenever Dynamo gives up a function because
    it has compiled it too often. It says so in its log alone."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message.startswith(_LIMIT_HIT):
                heard(message)

    logging.getLogger("torch._dynamo.convert_frame").addHandler(Listener(logging.WARNING))


def fake_tensors() -> contextlib.AbstractContextManager:
    """Tensors made inside have shapes, types and devices but no data; real ones become such."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fakes_of(
    tensors: Sequence[torch.Tensor], varying: Sequence[frozenset[int]]
) -> tuple[torch.Tensor, ...]:
    """Fake tensors of one mode. Sizes in the dimensions `varying` of each are symbols, one for all
    that are equal; other sizes, and those of 0 and 1, are numbers."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    dims = list(varying) or [frozenset()] * len(tensors)

    def fake(tensor: torch.Tensor, varies: frozenset[int]) -> torch.Tensor:
        kinds = [DimDynamic.DUCK if d in varies else DimDynamic.STATIC for d in range(tensor.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=kinds)
        return mode.from_tensor(tensor.detach(), symbolic_context=context)

    return tuple(map(fake, tensors, dims))


def joint_graph(
    function: Callable, inputs: Sequence, decompositions: dict, gradients: bool
) -> torch.fx.GraphModule:
    """`function(*inputs) -> list`, pure, as one functional graph of ATen operations. With
    `gradients` its inputs are those and a tangent for each result, and its outputs the results and
    a gradient for each input, None for those without."""
    return aot_export_joint_simple(
        function, tuple(inputs), trace_joint=gradients, decompositions=decompositions
    )


# Torch notes for each node which function of torch made it, at a quarter of a small trace's time.
_WITHOUT_NOTES = {
    name: True
    for name in ("_disable_torch_fn_metadata_mode",)
    if name in inspect.signature(make_fx).parameters
}


@dataclass(frozen=True)
class Decompositions:
    """A table as `run_decompositions` uses it. `plain`: of operations. `composite`: what stands for
    operators that dispatch takes apart. `native`: those of them where that is their own C++."""

    plain: dict
    composite: dict
    native: dict

    @classmethod
    def of(cls, table: dict) -> Decompositions:
        composite, plain = _split_decomp_table_to_cia_and_python_decomp(dict(table))
        native = {op: own for op, own in composite.items() if _is_native(op, own)}
        rest = {op: own for op, own in composite.items() if op not in native}
        return cls(plain, rest, native)


def _is_native(op: OpOverload, function: Callable) -> bool:
    return isinstance(function, functools.partial) and function.keywords == {"kernel": op}


@contextlib.contextmanager
def decomposing(mode: FakeTensorMode, decompositions: Decompositions) -> Iterator[None]:
    """What `run_decompositions` sets while it traces fake tensors of `mode`; without the 470
    `native` operators, which take 60 of 65 ms to set and do the same without, below autograd."""
    with (
        torch.no_grad(), mode, _ignore_backend_decomps(), _compiling_state_context(),
        functorch_config.patch(decompose_custom_triton_ops=False),
        _override_composite_implicit_decomp(decompositions.composite),
    ):  # fmt: skip
        yield


def _as_decomposed(target: Callable, native: dict) -> contextlib.AbstractContextManager:
    """Around a call of `target` alone. Torch goes below autograd for a composite operator: there a
    view of a parameter needs no gradient, which products ask."""
    if not isinstance(target, OpOverload):
        return _override_composite_implicit_decomp(native)
    return torch._C._AutoDispatchBelowAutograd() if target in native else contextlib.nullcontext()


def functional_graph(
    target: Callable, given: Callable, inputs: Sequence, decompositions: Decompositions
) -> tuple[torch.fx.GraphModule, object]:
    """`target(*args, **kwargs)`, those that `given(inputs)` gives, as functional operations, and
    how its result is nested. The graph gives the result's leaves, then for each input what was
    written to it, or None. `inputs`: fake tensors, no two the same object, and sizes. Within
    `decomposing`."""
    nested, found = None, []

    def functional(*values):
        nonlocal nested
        above = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
        with torch._C._ExcludeDispatchKeyGuard(above):
            wrapped = [to_fun(value) for value in values]
            args, kwargs = given(wrapped)
            with _as_decomposed(target, decompositions.native):
                result = target(*args, **kwargs)
            leaves, nested = pytree.tree_flatten(result)
        found.extend(leaves)
        found.extend(value if has_data_mutation(value) else None for value in wrapped)
        return [from_fun(value) for value in found]

    # Lazy: nobody calls the graph, and its Python takes a sixth of the time to write.
    with enable_python_dispatcher(), FunctionalTensorMode(), _use_lazy_graph_module(True):
        traced = make_fx(functional, decomposition_table=decompositions.plain, **_WITHOUT_NOTES)
        graph = traced(*inputs)
    for value, node in zip(found, graph.graph.output_node().args[0]):
        if isinstance(value, torch.Tensor) and value.requires_grad:  # a view of a parameter
            node.meta["val"].requires_grad_()
    return graph, nested


# Views that torch's trace writes down as they are called.
_VIEWS = frozenset({
    torch.ops.aten.expand.default, torch.ops.aten.permute.default, torch.ops.aten.select.int,
    torch.ops.aten.slice.Tensor, torch.ops.aten.unsqueeze.default, torch.ops.aten.view.default,
})  # fmt: skip
_ABOVE_BACKENDS = (
    torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd,
    torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.AutogradCUDA,
    torch._C.DispatchKey.Functionalize, torch._C.DispatchKey.ADInplaceOrView,
)  # fmt: skip


@functools.cache
def _is_one_operation(target: Callable) -> bool:
    """Whether torch makes one new tensor, or a view, by `target` itself: nothing takes it apart on
    the way to a backend, as far as no table does."""
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    if target is torch.ops.aten.lift_fresh_copy.default:  # a clone, where functions are traced
        return False
    schema = target._schema
    if len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return False
    said = (*schema.arguments, *schema.returns)
    aliased = any(each.alias_info is not None for each in said)
    implicit = torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )
    special = any(key in target.py_kernels for key in _ABOVE_BACKENDS)
    return not (schema.is_mutable or implicit or special) and (not aliased or target in _VIEWS)


def one_operation(
    target: Callable, given: Callable, inputs: Sequence, decompositions: Decompositions
) -> torch.Tensor | None:
    """The fake result of a call that `functional_graph` would trace to `target` alone, made without
    a trace. None: it has to be traced."""
    tables = decompositions.plain, decompositions.composite, decompositions.native
    if not _is_one_operation(target) or any(target in table for table in tables):
        return None
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if not tensors or any(map(_has_more, tensors)):
        return None
    args, kwargs = given(inputs)
    with enable_python_dispatcher():
        found = target(*args, **kwargs)
    return found if is_plain_fake(found) and all(found is not each for each in tensors) else None


def _has_more(value: torch.Tensor) -> bool:
    """A constant's numbers, or a sign that reading it changes."""
    signed = value.is_conj() or value.is_neg()
    return not is_plain_fake(value) or value.constant is not None or signed


def is_plain_fake(value) -> bool:
    """A fake tensor of torch's own class, with sizes, strides and a storage."""
    return type(value) is FakeTensor and value.layout == torch.strided and not value.is_quantized


def plain_surroundings() -> bool:
    """No autocast, no functorch transform, no dispatch mode: a graph captured without them may be
    called."""
    return not (
        torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack()
    )


class TensorCheck:
    """One C++ call, 40 ns a tensor, that compares class, dtype, device, sizes, strides, dispatch
    keys and which are one object with the tensors that it was made from. Stricter than need be,
    never laxer."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        first = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        self._unique = sorted(first.values())
        self._tied = [(i, first[id(t)]) for i, t in enumerate(tensors) if first[id(t)] != i]
        unique = [tensors[i] for i in self._unique]
        self._check = TensorGuards(  # it refuses to see a tensor twice
            *unique,
            dynamic_dims_sizes=[list(t.shape) for t in unique],
            dynamic_dims_strides=[list(t.stride()) for t in unique],
        ).check

    def passes(self, values: Sequence) -> bool:
        if not self._tied:
            return self._check(*values)
        return all(values[i] is values[j] for i, j in self._tied) and self._check(
            *[values[i] for i in self._unique]
        )


def onednn_multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN has instructions of this CPU for products in a 16-bit type."""
    name = "fp16" if dtype == torch.float16 else "bf16"
    known = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")
    return torch.backends.mkldnn.is_available() and known()


def exported(
    model: torch.nn.Module, args: tuple, kwargs: dict | None = None, **given
) -> torch.export.ExportedProgram:
    """torch.export.export, which writes out and compiles the code of each graph after each change.
    Here that is done for those that are run: a tenth of the time of a trace is saved. Raises what
    torch.export raises."""
    with _use_lazy_graph_module(True):
        return torch.export.export(model, args, kwargs, **given)


@contextlib.contextmanager
def any_sizes() -> Iterator[None]:
    """Symbols made inside stand for sizes from zero on. What torch itself would ask, such as
    whether one is 1, is answered as for a size that is not known; what the model asks is a
    guard."""
    _hear(1)
    try:
        with fx_config.patch(backed_size_oblivious=True):
            yield
    finally:
        _hear(-1)


# What a model has asked of the sizes of a trace, as expressions that are true. Torch has no guard
# for a question that it has asked before, and its own questions are dropped (`_is_about_one`).
_asked: weakref.WeakKeyDictionary[ShapeEnv, list] = weakref.WeakKeyDictionary()


_to_bool, _is_contiguous = torch.SymBool.__bool__, torch.Tensor.is_contiguous
_hearing = 0  # traces under way, of all threads
_hearing_lock = threading.Lock()
_oblivious = False  # the setting when the first began


def _hear(more: int) -> None:
    """While there are traces, answers to the model's own questions of sizes are kept. The first one
    sets torch's methods, the last one puts them back; and the setting, which is one for all threads
    in some releases, and then that of another trace where these end in another order than they
    began."""
    global _hearing, _oblivious
    with _hearing_lock:
        before, _hearing = _hearing, _hearing + more
        if not before:
            _oblivious = fx_config.backed_size_oblivious
            torch.SymBool.__bool__, torch.Tensor.is_contiguous = _answered, _contiguous
        elif not _hearing:
            fx_config.backed_size_oblivious = _oblivious
            torch.SymBool.__bool__ = _to_bool
            del torch.Tensor.is_contiguous  # its base class has it


def _answered(self) -> bool:
    answer = _to_bool(self)
    expression = getattr(self.node, "expr", None)
    if expression is not None and _is_the_models(sys._getframe(1)):
        _keep(self.node.shape_env, expression if answer else sympy.Not(expression))
    return answer


def _contiguous(self, *args, **kwargs) -> bool:
    answer = _is_contiguous(self, *args, **kwargs)
    if not answer and _is_the_models(sys._getframe(1)):
        differs_at_one(self.shape)  # a tensor of one row has another answer
    return answer


def differs_at_one(sizes: Sequence) -> None:
    """After or during a trace: it does not hold for calls in which one of the symbols among `sizes`
    is 1."""
    for size in sizes:
        if isinstance(size, torch.SymInt) and not size.node.expr.is_number:
            _keep(size.node.shape_env, sympy.Ne(size.node.expr, 1))


def _keep(env: ShapeEnv, expression) -> None:
    kept = _asked.setdefault(env, [])
    if expression not in kept:
        kept.append(expression)


def _is_the_models(frame) -> bool:
    """Code of a model, or torch's that is written as a model's is."""
    file = frame.f_code.co_filename
    return not file.startswith(_TORCH) or file.startswith(os.path.join(_TORCH, "nn", ""))


def tell_equal(size, other) -> None:
    """During a trace: two sizes are the same, which is a guard."""
    torch._check(size == other)


def size_guards(size: torch.SymInt) -> tuple[list, dict]:
    """What has to be true of the symbols of a trace, one of whose sizes is `size`: expressions of
    sympy, and for symbols (least, most), None where there is no such bound."""
    env = size.node.shape_env
    deferred = (each for of_symbol in env.deferred_runtime_asserts.values() for each in of_symbol)
    guards = [guard for guard in env.guards if not _is_about_one(guard)]
    known = (*(each.expr for each in (*guards, *deferred)), *_asked.get(env, ()))
    ranges = {
        symbol: (int(bounds.lower), int(bounds.upper) if bounds.upper.is_Integer else None)
        for symbol, bounds in env.var_to_range.items()
        if bounds.lower.is_Integer
    }
    return list(dict.fromkeys(map(env.replace, known))), ranges


def _is_about_one(guard) -> bool:
    """Torch's own code has asked whether a size is 1, and it was not. It asks to take a shorter
    way, such as a view; the other is right for 1, too. `squeeze` is not: export_.hold_squeezes."""
    expression, where = guard.expr, guard.sloc.framework_loc
    asks = type(expression).__name__ == "Unequality" and expression.args[1] == 1
    return asks and getattr(where, "filename", "").startswith(_TORCH)
