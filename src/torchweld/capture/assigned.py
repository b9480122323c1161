"""Modules whose forward changes plain attributes: `self.steps += 1`, `self.last = y`, and where
`self.count` is a tensor but no buffer, `self.count.add_(1)`.

torch.export takes what it finds there for constants, and puts all of it back but for the values of
tensors. So such a module is not for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from torchweld.core.errors import UsageError
from torchweld.core.torch_private import pytree

_CONTAINERS = (list, tuple, dict)
_SCALARS = (bool, int, float, complex, str, type(None))
_OWN = frozenset(vars(nn.Module()))  # parameters, buffers, hooks: torch.export knows these


@contextmanager
def refused(model: nn.Module) -> Iterator[None]:
    """A UsageError in a call of `model` that leaves other attributes than it found. Tensors have
    their values again afterwards."""
    before, tensors = attributes(model), _tensors(model)

    def compare(*_) -> None:
        after = attributes(model)
        changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        changed += [kept.name for kept in tensors if kept.is_written()]
        if changed:
            raise UsageError(f"its forward assigns to {', '.join(changed[:3])}")

    hook = model.register_forward_hook(compare)
    try:
        yield
    finally:
        hook.remove()
        for kept in tensors:
            kept.restore()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor among the plain attributes, and what it held."""

    name: str
    tensor: torch.Tensor
    version: int
    values: torch.Tensor

    def is_written(self) -> bool:
        return self.tensor._version != self.version

    def restore(self) -> None:
        if self.is_written():
            with torch.no_grad():
                self.tensor.copy_(self.values)


def _tensors(model: nn.Module) -> list[_Kept]:
    """Those of inference mode have no version, and nothing writes to them outside of it."""
    found = [
        (f"{name}.{key}".lstrip("."), leaf)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _OWN
        for leaf in (pytree.tree_leaves(value) if isinstance(value, _CONTAINERS) else [value])
        if type(leaf) is torch.Tensor and not leaf.is_inference()
    ]
    return [_Kept(n, t, t._version, t.detach().clone()) for n, t in found]


def attributes(model: nn.Module) -> dict[str, object]:
    """Each plain attribute of each of its modules, by qualified name, as a mark to compare."""
    return {
        f"{name}.{key}".lstrip("."): _mark(value, module)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _OWN
    }


def _mark(value, module: nn.Module):
    """Stands for `value` in comparisons: what containers hold, other objects as such."""
    if isinstance(value, weakref.ref):
        return _mark(value(), module)
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return tuple(_mark(v, module) for v in value)
    if isinstance(value, dict):
        return tuple((_mark(k, module), _mark(v, module)) for k, v in value.items())
    if isinstance(value, torch.Tensor) and any(value is p for p in module.parameters(False)):
        return "parameter"  # in a recurrent layer's list; torch.export puts others there
    return id(value)
