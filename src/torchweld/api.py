"""The public face: fuse, unfuse, the torch.compile backend, and what was compiled."""

from __future__ import annotations

import copy
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from inspect import getattr_static, unwrap
from types import FunctionType, MethodType
from typing import Any, TypeVar, overload

import torch

from torchweld.capture import aot, entry, torch_private
from torchweld.capture.captured import Captured
from torchweld.capture.decoding import client
from torchweld.capture.decoding.calls import PASS, CachedCalls, has_cache
from torchweld.capture.export_ import AheadOfTime
from torchweld.capture.fits import check_signature
from torchweld.capture.scores import Scores
from torchweld.core import events
from torchweld.core.errors import UsageError
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.exact.trees import as_arguments, tensors

_RECENT = 256
_compiled_anywhere: deque = deque(
    maxlen=_RECENT
)  # _Compiled: what `explain` finds for torch.compile(backend="torchweld")


_UNGIVEN: Any = object()
_MODES: Mapping[str | None, Mapping[str, Any]] = {
    None: {},
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "tune_seconds": 30.0},
    "max-autotune-no-cudagraphs": {"cuda_graphs": False, "tune_seconds": 30.0},
}  # of torch.compile, as options


_Model = TypeVar("_Model", bound=Callable[..., Any])


@overload
def fuse(
    model: _Model,
    example_inputs: Any = None,
    *,
    methods: Sequence[str] = (),
    options: Options | None = None,
    **overrides: Any,
) -> _Model: ...


@overload
def fuse(
    *,
    example_inputs: Any = None,
    methods: Sequence[str] = (),
    options: Options | None = None,
    **overrides: Any,
) -> Callable[[_Model], _Model]: ...


def fuse(
    model: Any = _UNGIVEN,
    example_inputs: Any = None,
    *,
    methods: Sequence[str] = (),
    options: Options | None = None,
    **overrides: Any,
) -> Any:
    """A fused version of `model`, a module or a function. The original is not changed. Without
    `model`: a decorator, `@torchweld.fuse(numerics="eager")`.

    `example_inputs`: a tensor, a tuple of arguments, or a dict of keyword arguments, on the device
    and in the dtypes of later calls. With them, graphs are captured and compiled now, and calls
    without gradients cost the host less. Without them, graphs are captured at the first call, as
    torch.compile does.

    `methods`: names of methods of the module that are fused besides `forward`, such as
    `("training_step",)`. Other methods run unchanged. The parts of the module that they call are
    fused.

    A fused module is an instance of a subclass of the original's class. It shares all state with
    the original: parameters, buffers, hooks, `state_dict` keys, train or eval mode. Copies and
    pickles of it hold the original. On a CPU, modules with the same class, sizes and plain
    attributes share what is compiled.

    Calls with gradients, autocast, forward hooks or `dynamic=True` go through torch.compile.

    Give fields of `Options` by name (`overrides`), or all at once (`options`). Raises UsageError
    for a model that cannot be fused, options or example inputs that do not fit, and values of
    TORCHWELD_LOG or TORCHWELD_DEBUG that are not valid.
    """
    chosen = (options or Options()).with_(**overrides)
    if model is _UNGIVEN:
        return lambda function: fuse(function, example_inputs, methods=methods, options=chosen)
    logger("api").debug("fuse %s", type(model).__name__)
    fused = _fused(unfuse(model), chosen, tuple(methods))
    if example_inputs is not None:
        args, kwargs = as_arguments(example_inputs)
        check_signature(unfuse(model), args, kwargs)
        _state(fused).capture(args, kwargs)
    return fused


def _fused(original: Callable, options: Options, methods: tuple[str, ...]):
    if isinstance(original, torch.jit.ScriptModule):
        raise UsageError(
            "a TorchScript module cannot be fused", do="fuse the module that it was made from"
        )
    if isinstance(original, torch.nn.Module):
        return _share(original, options, methods)
    if not callable(original):
        raise UsageError(
            f"cannot fuse a {type(original).__name__}", do="give a module or a function"
        )
    if methods:
        raise UsageError("a function has no methods to fuse", do="leave `methods` out")
    return FusedFunction(original, options)


def unfuse(fused: _Model) -> _Model:
    """The original that was given to `fuse`; `fused` itself if it is not fused."""
    state = _state(fused)
    return fused if state is None else state.original  # type: ignore[return-value]


def records(fused: Callable[..., Any] | None = None) -> list[Any]:
    """One record for each graph that was compiled for `fused` so far, in the order of compilation.
    Forward, backward and each side of a graph break are graphs of their own. Graphs that run in
    eager have no record. Without an argument, or for torch.compile(backend="torchweld"): the last
    graphs that were compiled in this process."""
    state = _state(fused)
    compiled = _compiled_anywhere if state is None else state.compiled
    return [made.record for made in compiled if made.record is not None]


def was_called(fused) -> bool:
    """Whether what `fuse` made has been called, or captured ahead of time."""
    state = _state(fused)
    return state is not None and (state.called or bool(state.compiled))


def captured_graphs(fused) -> list[Captured]:
    """Each graph captured for `fused` so far."""
    state = _state(fused)
    return [] if state is None else [made.captured for made in state.compiled]


def dynamo_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence,
    options: Mapping | None = None,
    mode=None,
    **overrides,
):
    """The backend of torch.compile(model, backend="torchweld", options={...}). `options` are
    fields of `Options`, by name. `mode`: torch.compile's. It is translated to the nearest options;
    an unknown one warns, and is ignored."""
    if mode not in _MODES:
        known = ", ".join(filter(None, _MODES))
        events.warn_once(f"mode {mode}", f"mode={mode!r} is ignored: torchweld knows {known}")
    chosen = Options().with_(**_MODES.get(mode, {})).with_(**dict(options or {}), **overrides)
    return _backend(chosen)(gm, example_inputs)


def begin(options: Options) -> None:
    """runtime.load.begin: g++ works while the graph is captured."""
    from torchweld.runtime import load

    load.begin(options)


def compile_graph(captured: Captured, options: Options) -> aot.Boxed:
    """pipeline.compile_graph, imported when the first graph is there: importing torchweld stays
    cheap."""
    from torchweld import pipeline

    return pipeline.compile_graph(captured, options)


def takes(scores: Scores) -> bool:
    """plan.scores.takes, imported when there are scores."""
    from torchweld.plan.scores.takes import takes

    return takes(scores)


def watch(options: Options, places: tuple, lengths: tuple, tensors: list[torch.Tensor]):
    """runtime.native.watch, imported when the first graph is there."""
    from torchweld.runtime import native

    return native.watch(options, places, lengths, tensors)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A graph and the pipeline's record of it, None if it runs in eager. `number`: in the order of
    compilation."""

    number: int
    captured: Captured
    record: object


class _Graphs:
    """What one of Dynamo's graphs became: a forward and its backward, or an inference."""

    def __init__(self) -> None:
        self.compiled: list[_Compiled] = []

    def remember(self, captured: Captured, compiled: aot.Boxed) -> None:
        made = _Compiled(next(_numbers), captured, getattr(compiled, "record", None))
        self.compiled.append(made)
        _compiled_anywhere.append(made)


class _Calls(threading.local):
    """Of fused objects, those under way in this thread, the outermost first."""

    def __init__(self) -> None:
        self.under_way: list[_State] = []


_numbers = itertools.count()
_calls = _Calls()


def _backend(options: Options) -> Callable:
    """For Dynamo. Its graphs may serve several fused objects: each that runs one notes it."""

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
        begin(options)
        graphs = _Graphs()
        asked = takes if options.fuse else None
        run = aot.make_backend(compile_graph, options, graphs.remember, asked)(gm, example_inputs)

        def noted(*args):
            if _calls.under_way:
                _calls.under_way[-1].graphs.setdefault(id(graphs), graphs)
            return run(*args)

        return noted

    return backend


class _State:
    """What a fused object has beyond the original: options, compiled graphs, and the two ways to
    call."""

    def __init__(
        self, original: Callable, options: Options, methods: tuple[str, ...] = ()
    ) -> None:
        _listen_for_limits()
        self.original, self.options, self.methods = original, options, methods
        self.graphs: dict[int, _Graphs] = {}
        self.called = False  # through Dynamo
        self._ahead = _Graphs()
        self._dynamo = entry.callable_of(original, options, _backend)
        self._ahead_of_time: AheadOfTime | None = None
        self._cached_calls: CachedCalls | None = None
        self._bound = {name: self._method(name) for name in methods}
        self._looked_at: set[str] = set()  # methods

    @property
    def compiled(self) -> list[_Compiled]:
        """What ran for it so far, in the order of compilation."""
        graphs = (self._ahead, *self.graphs.values())
        return sorted((c for g in graphs for c in g.compiled), key=lambda c: c.number)

    def call(self, *args, **kwargs):
        if has_cache(args, kwargs) and (made := self._with_cache(args, kwargs)) is not PASS:
            return made
        if self._ahead_of_time is not None:
            return self._ahead_of_time(*args, **kwargs)
        return self._counted(self._dynamo, args, kwargs)

    def _with_cache(self, args: tuple, kwargs: dict):
        """A call with a cache; PASS: it is left to others."""
        if self.options.dynamic is False or not isinstance(self.original, torch.nn.Module):
            return PASS
        if self._cached_calls is None:
            begin(self.options)
            self._cached_calls = CachedCalls(
                self.original, compile_graph, self.options, self._ahead.remember, watch
            )
        return self._cached_calls(args, kwargs)

    def _through_dynamo(self, *args, **kwargs):
        return self._counted(self._dynamo, args, kwargs)

    def _counted(self, call: Callable, args: tuple, kwargs: dict):
        self.called = True
        _calls.under_way.append(self)
        try:
            return call(*args, **kwargs)
        finally:
            _calls.under_way.pop()

    def _method(self, name: str) -> Callable:
        method = getattr(self.original, name, None)
        if not isinstance(method, MethodType):
            kind = type(self.original).__name__
            raise UsageError(f"{kind} has no method {name!r}", do="give names of its methods")
        return entry.callable_of(method, self.options, _backend)

    def call_method(self, name: str, function: Callable, fused, args: tuple, kwargs: dict):
        """`name` of the fused module: fused if that was asked for, else as it is, with a warning if
        its first call with tensors reaches nothing that is fused."""
        if name in self._bound:
            return self._counted(self._bound[name], args, kwargs)
        if name in self._looked_at or not self._skips_forward(function, args, kwargs):
            return function(fused, *args, **kwargs)
        self._looked_at.add(name)
        before, self.called = self.called, False
        result = function(fused, *args, **kwargs)
        if not self.called:
            kind = type(self.original).__name__
            message = f"{kind}.{name} runs unfused; to fuse it: fuse(model, methods=({name!r},))"
            events.warn_once(f"method:{kind}.{name}", message)
        self.called |= before
        return result

    def _skips_forward(self, function: Callable, args: tuple, kwargs: dict) -> bool:
        """It may call parts of the module with tensors, past what is fused."""
        names = unwrap(function).__code__.co_names
        parts = not self.original._modules.keys().isdisjoint(names)
        return parts and self._ahead_of_time is None and bool(tensors((args, kwargs)))

    def capture(self, args: tuple, kwargs: dict) -> None:
        """Captures ahead of time what can be: a function closes over what changes unseen, symbolic
        sizes need Dynamo's guards."""
        if isinstance(self.original, torch.nn.Module) and not self.options.dynamic:
            begin(self.options)
            self._ahead_of_time = AheadOfTime(
                self.original, compile_graph, self.options, self._ahead.remember,
                self._through_dynamo, watch, takes if self.options.fuse else None,
            )  # fmt: skip
            self._ahead_of_time.prepare(args, kwargs)


class FusedFunction:
    """A function, fused."""

    def __init__(self, original: Callable, options: Options) -> None:
        self._torchweld = _State(original, options)
        self.__name__ = getattr(original, "__name__", type(original).__name__)
        self.__doc__ = original.__doc__
        self.__wrapped__ = original

    def __call__(self, *args, **kwargs):
        return self._torchweld.call(*args, **kwargs)

    def __get__(self, instance, owner=None):
        """A method, where a function in a class was fused."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self):
        return FusedFunction, (self._torchweld.original, self._torchweld.options)


class FusedModule:
    """Mixed into a subclass of the original's class. Its instance has the original's own
    `__dict__`: one state, two objects."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            return self._call_impl(*args, **kwargs)
        return self._torchweld.call(*args, **kwargs)

    def __reduce_ex__(self, protocol):
        state = self._torchweld
        return _share, (state.original, state.options, state.methods)

    def __deepcopy__(self, memo):
        state = self._torchweld
        original = copy.deepcopy(state.original, memo)
        return memo.setdefault(id(self), _share(original, state.options, state.methods))

    def _replicate_for_data_parallel(self):
        return self._torchweld.original._replicate_for_data_parallel()

    def __copy__(self):
        state = self._torchweld
        return _share(copy.copy(state.original), state.options, state.methods)

    def __repr__(self):
        return f"Fused{super().__repr__()}"


_classes: dict[type, type] = {}


def _share(
    original: torch.nn.Module, options: Options, methods: tuple[str, ...] = ()
) -> torch.nn.Module:
    """An instance of a subclass of `original`'s class that shares its state. The subclass has the
    name of the class: checkpoints tell it."""
    kind, state = type(original), _State(original, options, methods)
    if kind not in _classes:
        body = {
            "__slots__": ("_torchweld",),
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
        }
        body |= client.methods(kind)
        _classes[kind] = type(kind)(kind.__name__, (FusedModule, kind), body)
    for name in _methods_of(kind).union(methods).difference(vars(_classes[kind])):
        setattr(_classes[kind], name, _watched_method(name, getattr(kind, name)))
    fused = object.__new__(_classes[kind])
    object.__setattr__(fused, "__dict__", original.__dict__)
    _classes[kind]._torchweld.__set__(fused, state)
    return fused


@cache
def _methods_of(kind: type) -> frozenset[str]:
    """Methods of users' modules that others call, less `forward`."""
    users = [
        c for c in kind.__mro__
        if issubclass(c, torch.nn.Module) and not c.__module__.startswith("torch.")
    ]  # fmt: skip
    names = {n for c in users for n in vars(c) if not n.startswith("_") and n != "forward"}
    return frozenset(n for n in names if isinstance(getattr_static(kind, n), FunctionType))


def _watched_method(name: str, function: Callable) -> Callable:
    @wraps(function)
    def method(self, *args, **kwargs):
        if torch.compiler.is_compiling() or not isinstance(self, FusedModule):
            return function(self, *args, **kwargs)
        return self._torchweld.call_method(name, function, self, args, kwargs)

    return method


def _state(fused) -> _State | None:
    return fused._torchweld if isinstance(fused, (FusedModule, FusedFunction)) else None



@cache
def _listen_for_limits() -> None:
    torch_private.on_recompile_limit(_limit_hit)


def _limit_hit(message: str) -> None:
    """Dynamo gives a function up: from now on new kinds of inputs run in eager there."""
    if not _calls.under_way:
        return
    name = type(_calls.under_way[-1].original).__name__
    said = " ".join(line.strip() for line in message.splitlines()[:3])
    what = f"{name} runs in eager for further kinds of inputs (dynamic=True may help): {said}"
    events.warn_once(f"limit:{said}", what)
