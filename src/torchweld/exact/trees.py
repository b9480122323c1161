"""Nested inputs and outputs of models: tuples, lists, dicts and what derives from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor


def leaves(value, path: str = "") -> Iterator[tuple[str, object]]:
    """(path, leaf) of everything that is no container: ("logits", tensor), ("past[0][1]",
    tensor)."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (tuple, list)):
        for position, part in enumerate(value):
            yield from leaves(part, f"{path}[{position}]")
    else:
        yield path or "output", value


def tensors(value) -> dict[str, Tensor]:
    """Every tensor of a nested value, by path."""
    return {path: leaf for path, leaf in leaves(value) if isinstance(leaf, Tensor)}


def map_tensors(function: Callable[[Tensor], Tensor], value):
    """The same nesting (tuples, lists, dicts) with `function` of each tensor; other leaves as they
    are."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {k: map_tensors(function, v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(function, v) for v in value)
    return value


def as_arguments(example_inputs) -> tuple[tuple, dict]:
    """(args, kwargs) of a call, from a tensor, a sequence of arguments, a dict of keyword arguments
    or ((...), {...})."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if not isinstance(example_inputs, (tuple, list)):
        return (example_inputs,), {}
    if (
        len(example_inputs) == 2
        and isinstance(example_inputs[0], (tuple, list))
        and type(example_inputs[1]) is dict
    ):
        return tuple(example_inputs[0]), dict(example_inputs[1])
    return tuple(example_inputs), {}
