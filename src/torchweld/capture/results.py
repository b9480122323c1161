"""From the flat results of a call to what the model returns.

torch's pytree does that for all structures. Output classes that are dictionaries and dataclasses at
once, as transformers' are, look at each field again when they are made, which takes longer than
launching a recorded model: once one was made, others get its state with the tensors of their call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass

from torchweld.core.torch_private import pytree

Build = Callable[[Sequence], object]


class Results:
    """Called with the flat results, it gives them in the structure `spec`."""

    def __init__(self, spec: pytree.TreeSpec) -> None:
        self._spec = spec
        self._build: Build | None = None

    def __call__(self, leaves: Sequence):
        if self._build is not None:
            return self._build(leaves)
        made = pytree.tree_unflatten(list(leaves), self._spec)
        self._build = again(made, leaves) or self._unflatten
        return made

    def _unflatten(self, leaves: Sequence):
        return pytree.tree_unflatten(list(leaves), self._spec)


def again(made: object, leaves: Sequence) -> Build | None:
    """A function that makes objects like `made` of other leaves. None where `made` is no dictionary
    with fields, or has state beside its leaves and None."""
    kind = type(made)
    numbers = {id(leaf): n for n, leaf in enumerate(leaves)}
    if not (isinstance(made, dict) and is_dataclass(made)) or len(numbers) < len(leaves):
        return None
    fields, items = _places(vars(made), numbers), _places(made, numbers)
    if fields is None or items is None:
        return None
    empty = dict.fromkeys(vars(made))
    fields = [(name, number) for name, number in fields if number is not None]
    put = OrderedDict.__setitem__ if isinstance(made, OrderedDict) else dict.__setitem__

    def build(leaves: Sequence):
        new = kind.__new__(kind)
        state = vars(new)
        state.update(empty)
        for name, number in fields:
            state[name] = leaves[number]
        for key, number in items:
            put(new, key, None if number is None else leaves[number])
        return new

    return build if _alike(build(leaves), made) else None


def _places(values: dict, numbers: dict[int, int]) -> list[tuple[object, int | None]] | None:
    """(key, the leaf's number; None: no leaf but None)"""
    if any(value is not None and id(value) not in numbers for value in values.values()):
        return None
    return [(key, numbers.get(id(value))) for key, value in values.items()]


def _alike(a: dict, b: dict) -> bool:
    pairs = ((a, b), (vars(a), vars(b)))
    return all(list(x) == list(y) and all(x[k] is y[k] for k in y) for x, y in pairs)
