"""Extern nodes to callables: which function a target names, and how its arguments are put together
at a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch

from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir.nodes import Arg, Attr, View
from torchweld.ir.size import Poly, evaluate

Fetch = Callable[[list], object]  # from a call's tensors, by slot, to an argument

# Calls whose `out=` form writes where it is told, without a copy of its own. torch's functions read
# their arguments in half the time of torch.ops' overloads.
_OUT_FORMS = {
    "aten.mm.default": torch.mm,
    "aten.addmm.default": torch.addmm,
    "aten.bmm.default": torch.bmm,
    "aten.baddbmm.default": torch.baddbmm,
}


@cache
def operator(target: str) -> Callable:
    """ "aten.addmm.default" -> torch.ops.aten.addmm.default."""
    found = torch.ops
    for part in target.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidIR(f"unknown operator {target}") from None
    return found


@cache
def is_random(target: str) -> bool:
    """Whether a call draws from torch's generator."""
    try:
        return torch.Tag.nondeterministic_seeded in operator(target).tags
    except InvalidIR:  # a library call of our own
        return False


def out_form(target: str) -> Callable | None:
    """The function that writes into a given tensor (keyword `out`), if it does so without extra
    work."""
    return _OUT_FORMS.get(target)


def attribute(attr: Attr):
    """The torch object that an Attr names."""
    if attr.kind == "device":
        return torch.device(attr.name)
    if attr.kind == "dtype" and attr.name in dtypes.BY_NAME:
        return dtypes.to_torch(dtypes.BY_NAME[attr.name])
    return getattr(torch, attr.name.removeprefix("torch."))


class Arguments:
    """The argument list of one Extern at known sizes: constants filled in, tensors fetched at each
    call.

    `fetch_view(view)` gives the Fetch of a View.
    """

    def __init__(self, args: tuple[Arg, ...], kwargs, fetch_view, sizes: Mapping[str, int]) -> None:
        bound = [_bind(a, fetch_view, sizes) for a in args]
        self.names = tuple(name for name, _ in kwargs)
        bound += [_bind(a, fetch_view, sizes) for _, a in kwargs]
        self._positional = len(args)
        self._template = [None if callable(b) else b[0] for b in bound]
        self._moving = tuple((i, b) for i, b in enumerate(bound) if callable(b))

    @property
    def parts(self) -> tuple[tuple, tuple, tuple]:
        """The arguments, those with names last; positions of those that come with a call, and a
        Fetch of each."""
        positions, fetches = (tuple(m[k] for m in self._moving) for k in (0, 1))
        return tuple(self._template), positions, fetches

    def __call__(self, tensors: list) -> tuple[list, dict]:
        values = self._template.copy()
        for position, fetch in self._moving:
            values[position] = fetch(tensors)
        if not self.names:
            return values, {}
        return values[: self._positional], dict(zip(self.names, values[self._positional :]))


def _bind(arg: Arg, fetch_view, sizes) -> Fetch | tuple:
    """A Fetch, or a constant in a tuple of one."""
    if isinstance(arg, View):
        return fetch_view(arg)
    if isinstance(arg, tuple):
        return _bind_list([_bind(a, fetch_view, sizes) for a in arg])
    if isinstance(arg, Attr):
        return (attribute(arg),)
    return (evaluate(arg, sizes),) if isinstance(arg, Poly) else (arg,)


def _bind_list(items: list) -> Fetch | tuple:
    if not any(callable(i) for i in items):
        return ([i[0] for i in items],)
    return lambda tensors: [i(tensors) if callable(i) else i[0] for i in items]


def results_list(result) -> list:
    """What an operator returned, as a flat list of tensors (or None)."""
    if isinstance(result, (tuple, list)):
        return [t for item in result for t in results_list(item)]
    return [result]
