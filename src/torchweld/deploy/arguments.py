"""The arguments of a call of `forward`, by name: so that an archive takes them as the model did, by
position or by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchweld.core.errors import UsageError
from torchweld.core.torch_private import pytree
from torchweld.deploy.records import Plain, same_plain

_PLAIN = (bool, int, float, str, type(None))
_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Arguments:
    """`values`: by name, in the order of the signature, less those that are their defaults, which
    are plain values (`defaults`). `args`, `kwargs`: the same as a call. `positional`, `rest`: as
    records.Call has them. `more`: the names that the parameter `gathers` takes (**kwargs)."""

    values: Mapping[str, object]
    args: tuple
    kwargs: Mapping[str, object]
    positional: tuple[str, ...]
    rest: str | None
    defaults: Mapping[str, Plain]
    gathers: str | None
    more: tuple[str, ...]


def apart(model: torch.nn.Module, args: tuple, kwargs: Mapping) -> tuple[tuple, dict]:
    """The same values, no tensor twice, and none that shares memory with another or with `model`:
    torch.export takes equal objects for equal arguments."""
    seen = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}

    def own(value):
        if not isinstance(value, torch.Tensor):
            return value
        value = value.resolve_neg()  # a call's are resolved, too
        storage = value.untyped_storage()
        if storage.data_ptr() in seen:
            made = torch.empty(0, dtype=value.dtype, device=value.device)
            return made.set_(storage.clone(), value.storage_offset(), value.shape, value.stride())
        seen.add(storage.data_ptr())
        return value

    return pytree.tree_map(own, (args, dict(kwargs)))


def arguments_of(model: torch.nn.Module, args: tuple, kwargs: Mapping) -> Arguments:
    """Errors: UsageError if `model` does not take them."""
    signature = inspect.signature(model.forward)
    parameters = signature.parameters.values()
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"the inputs do not fit {type(model).__name__}.forward: {error}",
                         do="give a tensor, a tuple of arguments, or a dict of keyword "
                         "arguments") from None
    defaults = {p.name: p.default for p in parameters if type(p.default) in _PLAIN}
    usual = [n for n, v in bound.arguments.items() if n in defaults and same_plain(v, defaults[n])]
    for name in usual:
        del bound.arguments[name]
    rest, gathers = (_of_kind(signature, kind) for kind in _GATHERING)
    more = tuple(bound.arguments.get(gathers, {}))
    return Arguments(
        _by_name(bound, gathers), bound.args, bound.kwargs,
        tuple(p.name for p in parameters if p.kind in _BY_POSITION), rest, defaults, gathers, more,
    )  # fmt: skip


def _of_kind(signature: inspect.Signature, kind) -> str | None:
    return next((p.name for p in signature.parameters.values() if p.kind == kind), None)


def _by_name(bound: inspect.BoundArguments, gathers: str | None) -> dict[str, object]:
    """With further keyword arguments (**kwargs) among the others."""
    values = {name: value for name, value in bound.arguments.items() if name != gathers}
    return values | bound.arguments.get(gathers, {})
