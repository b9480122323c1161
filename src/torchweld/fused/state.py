"""What a fused object has beyond the original, and the ways that a call of it goes: with a cache,
ahead of time, or through Dynamo."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from inspect import unwrap
from types import MethodType

import torch

from torchweld.capture import entry, torch_private
from torchweld.capture.decoding.calls import CachedCalls, has_cache
from torchweld.capture.export_ import AheadOfTime
from torchweld.core import events
from torchweld.core.errors import UsageError
from torchweld.core.options import Options
from torchweld.core.torch_private import in_forward_ad
from torchweld.exact.trees import tensors
from torchweld.fused.cuts import ADVICE, listen_for_limits, listener
from torchweld.fused.graphs import Compiled, Graphs, Notes, backend, calls
from torchweld.fused.later import begin, compile_graph, takes, watch

_lock = threading.Lock()  # one set of captures for each object


class State:
    """Of one fused object. `called`: it has run through Dynamo."""

    def __init__(self, original: Callable, options: Options, methods: tuple[str, ...] = ()) -> None:
        listen_for_limits()
        self.original, self.options, self.methods = original, options, methods
        self.called = False
        self._varies = options.dynamic is not False and _is_module(original)  # with a cache
        self._notes = Notes(type(original).__name__)
        self._is_silent = True  # nothing is said yet of its running in eager
        self._ahead = Graphs()
        self._dynamo = entry.callable_of(original, options, backend)
        self._ahead_of_time: AheadOfTime | None = None
        self._cached_calls: CachedCalls | None = None
        self._bound = {name: self._method(name) for name in methods}
        self._looked_at: set[str] = set()  # methods

    @property
    def compiled(self) -> list[Compiled]:
        """What ran for it so far, in the order of compilation."""
        graphs = (self._ahead, *self._notes.graphs.values())
        return sorted((c for g in graphs for c in g.compiled), key=lambda c: c.number)

    def call(self, *args, **kwargs):
        if in_forward_ad():
            return self.original(*args, **kwargs)
        if self._varies and has_cache(args, kwargs):
            return self._calls_with_cache()(args, kwargs, self._without_cache)
        if self._ahead_of_time is None:
            return self._counted(self._dynamo, args, kwargs)
        return self._ahead_of_time(*args, **kwargs)

    def _without_cache(self, args: tuple, kwargs: dict):
        if self._ahead_of_time is not None:
            return self._ahead_of_time(*args, **kwargs)
        return self._counted(self._dynamo, args, kwargs)

    def _calls_with_cache(self) -> CachedCalls:
        if self._cached_calls is None:
            with _lock:
                if self._cached_calls is None:
                    begin(self.options)
                    self._cached_calls = CachedCalls(
                        self.original, compile_graph, self.options, self._ahead.remember, watch
                    )
        return self._cached_calls

    def _through_dynamo(self, *args, **kwargs):
        return self._counted(self._dynamo, args, kwargs)

    def _counted(self, call: Callable, args: tuple, kwargs: dict):
        self.called = True
        listener.listen()
        calls.under_way.append(self._notes)
        try:
            result = call(*args, **kwargs)
        finally:
            calls.under_way.pop()
        if not self._notes.graphs and self._is_silent:
            self._tell_silence()
        return result

    def _tell_silence(self) -> None:
        """The first call has run no compiled graph."""
        self._is_silent = False
        known = self._notes.cuts or _has_parameters(self.original)
        if known and torch_private.plain_surroundings():  # Dynamo stays out of functorch
            why = next(iter(self._notes.cuts), "Dynamo captured no graph of it")
            name = type(self.original).__name__ if _is_module(self.original) else "a function"
            message = f"nothing of {name} is compiled, it runs in eager: {why}; {ADVICE}"
            events.warn_once(f"nothing:{name}:{why}", message)

    def _method(self, name: str) -> Callable:
        method = getattr(self.original, name, None)
        if not isinstance(method, MethodType):
            kind = type(self.original).__name__
            raise UsageError(f"{kind} has no method {name!r}", do="give names of its methods")
        return entry.callable_of(method, self.options, backend)

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
        code = getattr(unwrap(function), "__code__", None)  # None: a callable object was wrapped
        names = code.co_names if code is not None else ()
        parts = not self.original._modules.keys().isdisjoint(names)
        return parts and self._ahead_of_time is None and bool(tensors((args, kwargs)))

    def capture(self, args: tuple, kwargs: dict) -> None:
        """Captures ahead of time what can be: a function closes over what changes unseen, symbolic
        sizes need Dynamo's guards."""
        if _is_module(self.original) and not self.options.dynamic:
            begin(self.options)
            self._ahead_of_time = AheadOfTime(
                self.original, compile_graph, self.options, self._ahead.remember,
                self._through_dynamo, watch,
                partial(takes, self.options) if self.options.fuse else None,
            )  # fmt: skip
            self._ahead_of_time.prepare(args, kwargs)


def _is_module(original: Callable) -> bool:
    return isinstance(original, torch.nn.Module)


def _has_parameters(original: Callable) -> bool:
    return _is_module(original) and next(original.parameters(), None) is not None
