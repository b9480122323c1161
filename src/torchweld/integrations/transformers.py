"""The norms and gated MLPs of a transformers model, computed by torchweld's operators.

    from torchweld.integrations import transformers as welded

    applied = welded.apply(model)     # in place
    print(applied)                    # what was replaced, what was not, and why
    applied.undo()

Modules are recognised by what they compute (`structure.py`), so that any model of modules of these
forms works. For more fusion, and no change of modules, use `torchweld.fuse(model)`; both together
work too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor, nn

from torchweld.capture import assigned
from torchweld.integrations.structure import Form, form_of

_MOST_PARTS = 5  # of a gated MLP: itself, three linear layers, an activation


@dataclass(frozen=True)
class Replacement:
    """The module `name` is of the class `kind`, and now computes `operator`."""

    name: str
    kind: str
    operator: str


@dataclass(frozen=True)
class Applied:
    """What `apply` did. `refused`: names of modules that looked alike, with the reason."""

    replaced: tuple[Replacement, ...]
    refused: tuple[tuple[str, str], ...]
    _modules: list[nn.Module] = field(repr=False)

    def undo(self) -> None:
        """Every module is of its own class again. Weights stay as they are now."""
        while self._modules:
            module = self._modules.pop()
            module.__class__ = type(module)._torchweld_original  # type: ignore[attr-defined]

    def __str__(self) -> str:
        lines = [f"{x.name} ({x.kind}): {x.operator}" for x in self.replaced]
        lines += [f"{name}: not replaced, {reason}" for name, reason in self.refused]
        return "\n".join(lines)


def apply(model: nn.Module) -> Applied:
    """Lets the norms and gated MLPs of `model` be computed by `torchweld.ops`, in place.

    Parameters, their names, hooks and attributes stay; only the modules' classes change, to
    subclasses. A module is replaced if its results and gradients on a small random input, in
    training and evaluation, are those of the operator; float32 copies of one module's weights are
    made for that."""
    replaced, refused, modules = [], [], []
    known: dict[tuple[Any, ...], Form | str | None] = {}
    for name, module in list(model.named_modules()):
        form = None if isinstance(module, _Ours) else _form_of(module, known)
        if isinstance(form, str):
            refused.append((name, form))
        elif form is not None:
            replaced.append(Replacement(name, type(module).__name__, str(form)))
            module.__class__ = _subclass(type(module), form)
            modules.append(module)
    return Applied(tuple(replaced), tuple(refused), modules)


def _form_of(
    module: nn.Module, known: dict[tuple[Any, ...], Form | str | None]
) -> Form | str | None:
    """Modules of the same classes, sizes and attributes are tried once."""
    if not any(True for _ in module.parameters()) or len(list(module.modules())) > _MOST_PARTS:
        return None
    parts = tuple(type(m) for m in module.modules())
    sizes = tuple((n, p.shape, p.dtype, p.device) for n, p in module.named_parameters())
    key = (parts, sizes, tuple(assigned.attributes(module).items()))
    try:
        hash(key)
    except TypeError:  # an attribute that cannot be a key
        return form_of(module)
    if key not in known:
        known[key] = form_of(module)
    return known[key]


class _Ours(nn.Module):
    """Mixed into a subclass of the original's class."""

    _torchweld_form: Form
    _torchweld_original: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        kind = type(self)
        return _made, (kind._torchweld_original, kind._torchweld_form), self.__dict__


@cache
def _subclass(kind: type[nn.Module], form: Form) -> type[_Ours]:
    def forward(self: nn.Module, *args: Tensor, **kwargs: Tensor) -> Tensor:
        (x,) = (*args, *kwargs.values())
        return form(self, x)

    members = {
        "forward": forward, "_torchweld_form": form, "_torchweld_original": kind,
        "__module__": kind.__module__, "__doc__": kind.__doc__,
    }  # fmt: skip
    return type(kind.__name__, (_Ours, kind), members)


def _made(kind: type[nn.Module], form: Form) -> nn.Module:
    """For copies and pickles."""
    made = _subclass(kind, form)
    return made.__new__(made)
