"""The public face: fuse, unfuse, the torch.compile backend, and what was compiled."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MethodType

import torch

from torchweld.capture import aot
from torchweld.capture.captured import Captured
from torchweld.capture.export_ import AheadOfTime
from torchweld.core.errors import UsageError
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.exact.trees import as_arguments

_RECENT = 256
_compiled_anywhere: deque = deque(
    maxlen=_RECENT
)  # what `explain` finds for torch.compile(backend="torchweld")


def fuse(model: Callable, example_inputs=None, *, options: Options | None = None, **overrides):
    """`model` (a module or a function) with its operations fused; the original stays as it was.

    Without `example_inputs` graphs are captured at the first call, as torch.compile does. With them
    (a tensor, a tuple of arguments, or a dict of keyword arguments) calls that need no gradient run
    an exported graph, captured here and now.

    A fused module is of a subclass of the original's class and shares all of its state: parameters,
    buffers, hooks, `state_dict` keys, train or eval. Copies and pickles of it hold the original and
    compile again at their first call.

    Gradients, autocast, forward hooks and `dynamic=True` make a call of either form go through
    torch.compile.

    `overrides` are fields of `Options`, by name. Raises UsageError for what cannot be fused, and
    for a TORCHWELD_LOG or TORCHWELD_DEBUG that means nothing.
    """
    chosen = (options or Options()).with_(**overrides)
    logger("api").debug("fuse %s", type(model).__name__)
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "a TorchScript module cannot be fused", do="fuse the module that it was made from"
        )
    if isinstance(model, torch.nn.Module):
        fused = _share(unfuse(model), chosen)
    elif callable(model):
        fused = FusedFunction(unfuse(model), chosen)
    else:
        raise UsageError(f"cannot fuse a {type(model).__name__}", do="give a module or a function")
    if example_inputs is not None:
        _state(fused).capture(*as_arguments(example_inputs))
    return fused


def unfuse(fused):
    """The object that was given to `fuse`, or `fused` itself if it is not fused."""
    state = _state(fused)
    return fused if state is None else state.original


def records(fused=None) -> list:
    """What the pipeline recorded for each graph compiled for `fused` so far (forward, backward,
    each side of a graph break), in the order of compilation; without an argument, and for what
    `fuse` did not make (torch.compile(backend="torchweld")), the last graphs compiled in this
    process. Graphs that run in eager have no record."""
    state = _state(fused)
    compiled = _compiled_anywhere if state is None else state.compiled
    return [record for _, record in compiled if record is not None]


def captured_graphs(fused) -> list[Captured]:
    """Each graph captured for `fused` so far."""
    state = _state(fused)
    return [] if state is None else [captured for captured, _ in state.compiled]


def dynamo_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence,
    options: Mapping | None = None,
    mode=None,
    **overrides,
):
    """The backend of torch.compile(model, backend="torchweld", options={...}): fields of `Options`,
    by name."""
    if mode not in (None, "default"):
        raise UsageError(f"torch.compile mode {mode!r} has no meaning here", do="use options={...}")
    chosen = Options().with_(**dict(options or {}), **overrides)
    return _backend(chosen, _remember)(gm, example_inputs)


def _backend(options: Options, on_compiled: aot.OnCompiled) -> Callable:
    """What torch.compile calls with each graph that Dynamo found."""
    traced = aot.make_backend(compile_graph, options, on_compiled)

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
        begin(options)
        return traced(gm, example_inputs)

    return backend


def begin(options: Options) -> None:
    """runtime.load.begin: g++ works while the graph is captured."""
    from torchweld.runtime import load

    load.begin(options)


def compile_graph(captured: Captured, options: Options) -> aot.Boxed:
    """pipeline.compile_graph, imported when the first graph is there: importing torchweld stays
    cheap."""
    from torchweld import pipeline

    return pipeline.compile_graph(captured, options)


def watch(options: Options, places: tuple, lengths: tuple, tensors: list[torch.Tensor]):
    """runtime.native.watch, imported when the first graph is there."""
    from torchweld.runtime import native

    return native.watch(options, places, lengths, tensors)


class _State:
    """What a fused object has beyond the original: options, compiled graphs, and the two ways to
    call."""

    def __init__(self, original: Callable, options: Options) -> None:
        self.original, self.options = original, options
        self.compiled: list[tuple[Captured, object]] = []  # with the pipeline's record of it
        backend = _backend(options, self.remember)
        self._dynamo = torch.compile(original, backend=backend, dynamic=options.dynamic)
        if isinstance(original, torch.nn.Module):
            vars(original).pop("_is_torch_compile", None)  # torch leaves it on the module itself
        self.call: Callable = self._dynamo

    def remember(self, captured: Captured, compiled: aot.Boxed) -> None:
        self.compiled.append((captured, getattr(compiled, "record", None)))
        _remember(captured, compiled)

    def capture(self, args: tuple, kwargs: dict) -> None:
        """Captures ahead of time what can be: a function closes over what changes unseen, symbolic
        sizes need Dynamo's guards."""
        if isinstance(self.original, torch.nn.Module) and not self.options.dynamic:
            begin(self.options)
            self.call = AheadOfTime(
                self.original, compile_graph, self.options, self.remember, self._dynamo, watch
            )
            self.call.prepare(args, kwargs)


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
        return _share, (self._torchweld.original, self._torchweld.options)

    def __deepcopy__(self, memo):
        state = self._torchweld
        return memo.setdefault(id(self), _share(copy.deepcopy(state.original, memo), state.options))

    def _replicate_for_data_parallel(self):
        return self._torchweld.original._replicate_for_data_parallel()

    def __copy__(self):
        return _share(copy.copy(self._torchweld.original), self._torchweld.options)


_classes: dict[type, type] = {}


def _share(original: torch.nn.Module, options: Options) -> torch.nn.Module:
    """An instance of a subclass of `original`'s class that shares its state."""
    kind = type(original)
    if kind not in _classes:
        body = {
            "__slots__": ("_torchweld",),
            "__module__": kind.__module__,
            "__doc__": kind.__doc__,
        }
        _classes[kind] = type(f"Fused{kind.__name__}", (FusedModule, kind), body)
    fused = object.__new__(_classes[kind])
    object.__setattr__(fused, "__dict__", original.__dict__)
    _classes[kind]._torchweld.__set__(fused, _State(original, options))
    return fused


def _state(fused) -> _State | None:
    return fused._torchweld if isinstance(fused, (FusedModule, FusedFunction)) else None


def _remember(captured: Captured, compiled: aot.Boxed) -> None:
    _compiled_anywhere.append((captured, getattr(compiled, "record", None)))
