"""Modules whose forward assigns to plain attributes: `self.steps += 1`, `self.last = y`.

torch.export takes what it finds there for constants and puts all of it back, so such a module is
not for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from torchweld.core.errors import UsageError

_SCALARS = (bool, int, float, complex, str, type(None))
_OWN = frozenset(vars(nn.Module()))  # parameters, buffers, hooks: torch.export knows these


@contextmanager
def refused(model: nn.Module) -> Iterator[None]:
    """A UsageError in a call of `model` that leaves other attributes than it found."""
    before = attributes(model)

    def compare(*_) -> None:
        after = attributes(model)
        changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        if changed:
            raise UsageError(f"its forward assigns to {', '.join(changed[:3])}")

    hook = model.register_forward_hook(compare)
    try:
        yield
    finally:
        hook.remove()


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
