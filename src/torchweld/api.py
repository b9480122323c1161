"""The public face: fuse, unfuse, the torch.compile backend, and what was compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch

from torchweld.capture.captured import Captured
from torchweld.capture.fits import check_signature
from torchweld.core import events
from torchweld.core.errors import UsageError
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.exact.trees import as_arguments
from torchweld.fused.graphs import backend, recent
from torchweld.fused.objects import FusedFunction, share, state_of

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
        state_of(fused).capture(args, kwargs)
    return fused


def _fused(original: Callable, options: Options, methods: tuple[str, ...]):
    if isinstance(original, torch.jit.ScriptModule):
        raise UsageError(
            "a TorchScript module cannot be fused", do="fuse the module that it was made from"
        )
    if isinstance(original, torch.nn.Module):
        return share(original, options, methods)
    if not callable(original):
        raise UsageError(
            f"cannot fuse a {type(original).__name__}", do="give a module or a function"
        )
    if methods:
        raise UsageError("a function has no methods to fuse", do="leave `methods` out")
    return FusedFunction(original, options)


def unfuse(fused: _Model) -> _Model:
    """The original that was given to `fuse`; `fused` itself if it is not fused."""
    state = state_of(fused)
    return fused if state is None else state.original  # type: ignore[return-value]


def records(fused: Callable[..., Any] | None = None) -> list[Any]:
    """One record for each graph that was compiled for `fused` so far, in the order of compilation.
    Forward, backward and each side of a graph break are graphs of their own. Graphs that run in
    eager have no record. Without an argument, or for torch.compile(backend="torchweld"): the last
    graphs that were compiled in this process."""
    state = state_of(fused)
    compiled = recent if state is None else state.compiled
    return [made.record for made in compiled if made.record is not None]


def was_called(fused) -> bool:
    """Whether what `fuse` made has been called, or captured ahead of time."""
    state = state_of(fused)
    return state is not None and (state.called or bool(state.compiled))


def captured_graphs(fused) -> list[Captured]:
    """Each graph captured for `fused` so far."""
    state = state_of(fused)
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
    return backend(chosen)(gm, example_inputs)
