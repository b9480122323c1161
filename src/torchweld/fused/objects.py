"""What `fuse` gives: a function's stand-in, or an instance of a subclass of the module's class."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, wraps
from inspect import getattr_static
from types import FunctionType, MethodType

import torch

from torchweld.capture.decoding import client
from torchweld.core.options import Options
from torchweld.fused.state import State


class FusedFunction:
    """A function, fused."""

    def __init__(self, original: Callable, options: Options) -> None:
        self._torchweld = State(original, options)
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
        return share, (state.original, state.options, state.methods)

    def __deepcopy__(self, memo):
        state = self._torchweld
        original = copy.deepcopy(state.original, memo)
        return memo.setdefault(id(self), share(original, state.options, state.methods))

    def _replicate_for_data_parallel(self):
        return self._torchweld.original._replicate_for_data_parallel()

    def __copy__(self):
        state = self._torchweld
        return share(copy.copy(state.original), state.options, state.methods)

    def __repr__(self):
        return f"Fused{super().__repr__()}"


_classes: dict[type, type] = {}


def share(
    original: torch.nn.Module, options: Options, methods: tuple[str, ...] = ()
) -> torch.nn.Module:
    """An instance of a subclass of `original`'s class that shares its state. The subclass has the
    name of the class: checkpoints tell it."""
    kind, state = type(original), State(original, options, methods)
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


def state_of(fused) -> State | None:
    """None: it is not fused."""
    return fused._torchweld if isinstance(fused, (FusedModule, FusedFunction)) else None
