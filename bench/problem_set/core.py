"""What a problem is, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, list[Tensor]]


@dataclass(frozen=True)
class Problem:
    """`make(scale)` -> (module, inputs) on the CPU, in float32 unless a file says
    otherwise; the inputs grow with `scale`. `scale`: what a GPU is given; a CPU is given 1.
    `needs`: a package that has to be installed. `trains`: some result has a gradient. `low`: in
    bfloat16 on a GPU unless another dtype is asked for."""

    name: str
    group: str
    make: Callable[[int], Made]
    scale: int = 16
    needs: str = "torch"
    trains: bool = True
    low: bool = False

    @property
    def available(self) -> bool:
        """Whether the package that it needs is installed."""
        return find_spec(self.needs) is not None


@dataclass(frozen=True)
class Built:
    """A problem on a device, in a dtype, ready to be called."""

    module: nn.Module
    inputs: tuple[Tensor, ...]


PROBLEMS: dict[str, Problem] = {}


def add(problem: Problem) -> None:
    """Errors: ValueError if its name is taken."""
    if problem.name in PROBLEMS:
        raise ValueError(f"two problems are called {problem.name}")
    PROBLEMS[problem.name] = problem


def problem_of(group: str) -> Callable:
    """A decorator of `group`: `@problem` or `@problem(scale=4, trains=False)` above a function that
    makes the problem of its name."""

    def decorator(make: Callable | None = None, **fields):
        if make is None:
            return lambda function: decorator(function, **fields)
        add(Problem(make.__name__, group, make, **fields))
        return make

    return decorator


def net(forward: Callable, **parts: nn.Module | nn.Parameter) -> nn.Module:
    """A module of a class of its own, whose method is `forward(self, *inputs)`. With one class for
    all, torch.compile would take them for one model that is called in too many ways."""
    made = type(forward.__name__, (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def function(call: Callable) -> nn.Module:
    """A module without parameters that computes `call(*inputs)`."""

    def forward(self, *inputs):
        return call(*inputs)

    return net(forward)


def weight(*shape: int, std: float = 1.0) -> nn.Parameter:
    return nn.Parameter(std * torch.randn(shape))


def build(problem: Problem, device: str, dtype: torch.dtype | None, train: bool) -> Built:
    """The problem with the same numbers at each call and on each device. `dtype`: of parameters and
    floating inputs; None for the usual ones. When training, dropout layers drop nothing."""
    torch.manual_seed(0)
    module, inputs = problem.make(1 if device == "cpu" else problem.scale)
    dtype = dtype or usual_dtype(problem, device)
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    moved = tuple(_to(tensor, device, dtype) for tensor in inputs)
    module._apply(lambda tensor: _to(tensor, device, dtype))  # `to` drops imaginary parts
    return Built(module.train(train), moved)


def usual_dtype(problem: Problem, device: str) -> torch.dtype | None:
    """None for those that it is made in."""
    return torch.bfloat16 if problem.low and device != "cpu" else None


def _to(tensor: object, device: str, dtype: torch.dtype | None) -> object:
    if not isinstance(tensor, Tensor):  # a number, in a file of others
        return tensor
    return tensor.to(device, dtype if tensor.is_floating_point() else None)
