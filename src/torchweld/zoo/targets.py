"""What can be reported on: a model, inputs that fit it, a loss. From the zoo or a user's file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchweld.core.errors import UsageError, one_line

HOW = (
    "give a function that returns (model, example_inputs), the model a torch.nn.Module, for "
    "example path/to/file.py:make"
)
Loss = Callable[..., torch.Tensor]  # (output of the model, *its inputs) -> scalar


@dataclass(frozen=True)
class Target:
    """`model` is called with `args` and `kwargs`. When training, it returns the loss, a scalar."""

    name: str
    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    train: bool = False

    @property
    def example_inputs(self) -> tuple | dict:
        """As `torchweld.fuse` and `verify` take them: positional in a tuple, named in a dict."""
        return self.kwargs if self.kwargs else self.args


class WithLoss(nn.Module):
    """model and loss as one module, so that both are captured and fused together."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args, **kwargs) -> torch.Tensor:
        return self.loss(self.model(*args, **kwargs), *args, *kwargs.values())


def tensors(output: Any) -> list[torch.Tensor]:
    """Every tensor of a model's output (tensor, tuple, list, dict or ModelOutput), in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, (tuple, list)):  # first: results of `max` have a field named `values`
        parts = output
    else:
        parts = output.values() if hasattr(output, "values") else ()
    return [t for part in parts for t in tensors(part)]


def regression_loss(output: Any, *_inputs) -> torch.Tensor:
    """Mean squared distance of the first floating output from a cosine ramp over its last
    dimension. (A plain mean has no gradient behind a normalisation.)"""
    first = next(t for t in tensors(output) if t.is_floating_point())
    ramp = torch.cos(
        torch.arange(
            first.shape[-1] if first.dim() else 1, device=first.device, dtype=torch.float32
        )
    )
    return (first.float() - ramp).square().mean()


def load_target(spec: str, *, dtype: torch.dtype | None, device: str, train: bool) -> Target:
    """`path/to/file.py:function` -> its Target. The function takes no arguments and returns
    (model, example_inputs) or, with a loss of its own for training, (model, example_inputs, loss).
    Errors: UsageError, whatever is wrong with it."""
    made = _call(_function(spec), spec)
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise UsageError(f"{spec} returned {_describe(made)}", do=HOW)
    args, kwargs = _inputs(made[1], spec)
    loss = made[2] if len(made) == 3 else regression_loss
    return prepare(spec, made[0], args, kwargs, loss, dtype=dtype, device=device, train=train)


def prepare(
    name: str,
    model: nn.Module,
    args: tuple,
    kwargs: dict | None,
    loss: Loss,
    *,
    dtype: torch.dtype | None,
    device: str,
    train: bool,
) -> Target:
    """Moves model and inputs to the device, their floating parts to dtype (None keeps each as it
    is), and sets train or eval mode."""

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device, dtype if value.is_floating_point() else None)

    model = model.to(device=device, dtype=dtype).train(train)
    model = WithLoss(model, loss) if train else model
    return Target(
        name,
        model,
        tuple(move(a) for a in args),
        {k: move(v) for k, v in (kwargs or {}).items()},
        train,
    )


def check_fits(target: Target) -> None:
    """Calls the model once as it is. Errors: UsageError if its inputs do not fit."""
    try:
        with torch.set_grad_enabled(target.train):
            output = target.model(*target.args, **(target.kwargs or {}))
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"{target.name} does not fit in memory", do="make its inputs smaller"
        ) from error
    except Exception as error:
        raise UsageError(
            f"the example inputs do not fit {target.name}: {one_line(error)}",
            do="give inputs that model(*example_inputs) accepts",
        ) from error
    if not tensors(output):
        raise UsageError(
            f"{target.name} returned no tensor, but {_describe(output)}", do="return tensors"
        )


def _function(spec: str) -> Callable:
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if not path or not name.isidentifier():
        raise UsageError(f"{spec!r} is not a target", do=HOW)
    if not file.is_file() or file.suffix != ".py":
        raise UsageError(f"there is no Python file {path}", do=HOW)
    try:
        module_spec = importlib.util.spec_from_file_location(f"torchweld_target_{file.stem}", file)
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_spec.name] = module  # pickling and Dynamo look it up by name
        _find_neighbours(file)
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path} cannot be imported: {one_line(error)}", do="fix it, or give another file"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function {name}", do=HOW)
    return function


def _find_neighbours(file: Path) -> None:
    """The file may import what lies beside it, as it may when it is run."""
    folder = str(file.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _call(function: Callable, spec: str):
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{spec} failed: {one_line(error)}", do="it must work when called without arguments"
        ) from error


def _inputs(given, spec: str) -> tuple[tuple, dict]:
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, dict):
        return (), given
    if isinstance(given, (tuple, list)):
        return tuple(given), {}
    raise UsageError(
        f"the example inputs of {spec} are {_describe(given)}",
        do="give a tensor, a tuple of positional arguments or a dict",
    )


def _describe(value) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of ({', '.join(type(v).__name__ for v in value)})"
    return f"a value of type {type(value).__name__}"
