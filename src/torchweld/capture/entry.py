"""How calls of a fused object reach Dynamo: one code object for each kind of model.

Dynamo keeps what it compiled on the code object of the function that is called, stops after eight
compilations of it (`torch._dynamo.config.recompile_limit`), and takes a size that differs between
two calls of it for one that varies. All models of a class share the code of its `forward`, and all
of torch's own modules and functions share one wrapper of Dynamo's. So here each kind of model has
its own copy of that code: models of one kind share what is compiled, by Dynamo's guards; models of
two kinds do not meet.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType

import torch
from torch.utils.hooks import RemovableHandle

from torchweld.capture import assigned, torch_private, tracing
from torchweld.capture.functions import with_code
from torchweld.capture.told import warn_of
from torchweld.core.errors import one_line
from torchweld.core.options import Options

Backend = Callable
MakeBackend = Callable[[Options], Backend]

_TRIES = 3  # of code that fails
_numbers = itertools.count(1)
_lock = threading.Lock()


class Entry:
    """`call(original, *args, **kwargs)`, compiled by `backend`. What Dynamo compiles
    goes with it."""

    def __init__(self, function: Callable, backend: Backend, dynamic: bool | None) -> None:
        own = own_copy(function)
        compiled = torch_private.compile_apart(own, backend, dynamic)
        self.call = torch_private.quick(compiled, _Failures())
        weakref.finalize(self, torch_private.forget_compiled, own.__code__).atexit = False


class _Failures:
    """What Dynamo cannot compile runs in eager. Other inputs may go well, so it is tried again, but
    not in every call of code that always fails. If sizes that depend on data were what it fails
    with, it is tried at once without them."""

    def __init__(self) -> None:
        self._counts: Counter[CodeType] = Counter()
        self._cut: set[CodeType] = set()  # at such sizes

    def __call__(self, code: CodeType, error: Exception) -> bool | None:
        if code not in self._cut and torch_private.is_of_sizes_from_data(error):
            self._cut.add(code)
            tracing.leave_out_sizes_next()
            return None
        name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has none
        place = f"{name} ({code.co_filename}:{code.co_firstlineno})"
        message = f"torch.compile cannot trace {place}, which runs in eager: {one_line(error)}"
        warn_of(error, f"dynamo:{place}", message)
        self._counts[code] += 1
        return self._counts[code] >= _TRIES


_entries: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def callable_of(original: Callable, options: Options, make_backend: MakeBackend) -> Callable:
    """What stands in for `original` and goes through Dynamo."""
    if isinstance(original, torch.nn.Module):
        return _ModuleCall(original, options, make_backend)
    if isinstance(original, MethodType) and _has_own_code(original.__func__):
        function, first = original.__func__, (original.__self__,)
    elif _has_own_code(original):
        function, first = original, ()
    elif _is_torchs(original):
        function, first = _call, (original,)
    else:
        return torch_private.compile_apart(original, make_backend(options), options.dynamic)
    return _FunctionCall(_shared((original, options), function, options, make_backend), first)


class _FunctionCall:
    """Calls of one function."""

    def __init__(self, entry: Entry, first: tuple) -> None:
        self._entry, self._first = entry, first

    def __call__(self, *args, **kwargs):
        return self._entry.call(*self._first, *args, **kwargs)


class _ModuleCall:
    """Calls of one module. Dynamo's guards do not look at hooks, so they are part of its kind."""

    def __init__(self, module: torch.nn.Module, options: Options, make_backend: MakeBackend):
        self._module, self._options = module, options
        self._make_backend = make_backend
        self._whole: Callable | None = None  # with hooks and what else stands around `forward`
        self._alike = _kind(module, options)
        self._hooks: tuple = ()
        self._hooks_seen = -1
        self._all_hooked = False  # hooks that are not the module's own
        self._entry: Entry | None = None
        self._function = _function_of(type(module).forward)

    def __call__(self, *args, **kwargs):
        if self._hooks_seen != RemovableHandle.next_id:  # a hook was registered somewhere
            self._look_at_hooks()
        if (
            self._entry is not None
            and torch_private.calls_forward_alone(self._module)
            and not (self._all_hooked and torch_private.hooks_of_all_modules())
        ):
            return self._entry.call(self._module, *args, **kwargs)
        if self._whole is None:
            self._whole = self._compiled_whole()
        return self._whole(*args, **kwargs)

    def _look_at_hooks(self) -> None:
        """Other hooks are another kind, whose entry is another."""
        self._hooks_seen = RemovableHandle.next_id
        self._all_hooked = torch_private.hooks_of_all_modules()
        hooks = tuple(torch_private.hooks_below(self._module))
        if self._function is not None and (self._entry is None or hooks != self._hooks):
            key = (*self._alike, hooks)
            self._entry = _shared(key, self._function, self._options, self._make_backend)
        if hooks != self._hooks:
            self._hooks, self._whole = hooks, None

    def _compiled_whole(self) -> Callable:
        made = torch_private.compile_apart(
            self._module, self._make_backend(self._options), self._options.dynamic
        )
        vars(self._module).pop("_is_torch_compile", None)  # torch leaves it on the module itself
        return made


def _function_of(forward: Callable) -> Callable | None:
    """Whose code is copied, to call a module whose class has this `forward`; None if it cannot be
    told apart from the module."""
    if _has_own_code(forward):
        return forward
    return _call if _is_torchs(forward) else None


def _call(self, *args, **kwargs):
    """The code that is copied for what has none of its own that Dynamo would look at."""
    return self(*args, **kwargs)


def _shared(key, function: Callable, options: Options, make_backend: MakeBackend) -> Entry:
    """The Entry of this kind; a new one if none is alive."""
    with _lock:
        entry = _entries.get(key)
        if entry is None:
            entry = _entries[key] = Entry(function, make_backend(options), options.dynamic)
    return entry


def own_copy(function: FunctionType) -> FunctionType:
    """`function` with a code object of its own. Its name differs as well: by name, file and line
    Dynamo remembers which sizes vary."""
    code: CodeType = function.__code__
    code = code.replace(co_name=f"{code.co_name}_{next(_numbers)}")
    made = with_code(function, code, function.__closure__)
    made.__dict__.update(function.__dict__)
    return made


def _has_own_code(function: Callable) -> bool:
    """A function of the user's, and none that a decorator of Dynamo's has changed."""
    return _is_plain(function) and not torch_private.skipped_by_dynamo(function)


def _is_torchs(function: Callable) -> bool:
    """One that Dynamo does not compile by itself, but in a call from elsewhere."""
    if isinstance(function, BuiltinFunctionType):
        return True
    return _is_plain(function) and torch_private.skipped_by_dynamo(function)


def _is_plain(function: Callable) -> bool:
    return isinstance(function, FunctionType) and not any(
        name.startswith("_torchdynamo") for name in vars(function)
    )


def _kind(module: torch.nn.Module, options: Options) -> tuple:
    """Equal for modules that are likely to share what is compiled; Dynamo's guards have the last
    word. Objects in plain attributes count as themselves."""
    classes = tuple((name, type(part)) for name, part in module.named_modules())
    sizes = tuple((name, _signature(t)) for name, t in _tensors(module))
    shares = not options.pack_weights and all(t.device.type == "cpu" for _, t in _tensors(module))
    # CUDA graphs and packed weights are made for the parameters of one module
    apart = None if shares else id(module)
    return options, classes, sizes, tuple(assigned.attributes(module).items()), apart


def _tensors(module: torch.nn.Module):
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _signature(tensor: torch.Tensor) -> tuple:
    lazy = torch.nn.parameter.is_lazy(tensor)
    shape = None if lazy else tuple(tensor.shape)
    return shape, tensor.dtype, tensor.device, tensor.requires_grad
