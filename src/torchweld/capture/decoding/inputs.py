"""What a call with a cache is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

# By names of transformers: the tokens that are new to the cache, [batch, positions, ...], and the
# mask of all tokens so far, which is 1 where a position is no padding. The first that is given
# counts: what a decoder is given comes before what its encoder is.
MASKS = {
    "decoder_input_ids": "decoder_attention_mask",
    "decoder_inputs_embeds": "decoder_attention_mask",
    "input_ids": "attention_mask",
    "inputs_embeds": "attention_mask",
}
_SCALARS = frozenset((bool, int, float, str, type(None)))
_TENSOR, _UNKNOWN = object(), object()


@dataclass(frozen=True)
class Nested:
    """A dictionary, tuple or list: its class, its keys, and what is at each, _TENSOR where that is
    a tensor."""

    kind: type
    names: tuple[str, ...] | None
    parts: tuple

    def built(self, tensors: Iterator[torch.Tensor]):
        each = [_built(part, tensors) for part in self.parts]
        return self.kind(each) if self.names is None else self.kind(**dict(zip(self.names, each)))


def _built(part, tensors: Iterator[torch.Tensor]):
    if part is _TENSOR:
        return next(tensors)
    return part.built(tensors) if type(part) is Nested else part


@dataclass(frozen=True)
class Inputs:
    """Of a call: its tensors by name, that of the tokens first; everything else that it is given
    but the cache, and the name of that. `masked`: the cache's room has the padding mask. A tensor
    inside another value has the name of that and a number."""

    tensors: dict[str, torch.Tensor]
    others: dict[str, object]
    cache_name: str
    cache: object
    masked: bool = False

    @property
    def mask(self) -> str:
        """The name of the padding mask."""
        return MASKS[next(iter(self.tensors))]

    def arguments(self, given: Mapping[str, torch.Tensor]) -> dict[str, object]:
        """The call's, but for the cache, with other tensors of the same names."""
        made = {name: given[name] for name in given if name.partition(".")[0] not in self.others}
        for name, value in self.others.items():
            inside = (t for place, t in given.items() if place.partition(".")[0] == name)
            made[name] = _built(value, inside)
        return made

    def key(self) -> tuple:
        """Equal for calls that differ in sizes and values alone."""
        each = [(name, t.dtype, t.device, t.dim()) for name, t in self.tensors.items()]
        return (*each, *self.others.items(), self.cache_name, type(self.cache), self.masked)

    def sizes(self) -> tuple:
        """`key` and the sizes."""
        each = [(name, t.dtype, t.device, t.shape) for name, t in self.tensors.items()]
        return (*each, *self.others.items(), self.cache_name, type(self.cache), self.masked)


def read(named: Mapping[str, object], cache_class: type) -> Inputs | None:
    """None: there is something among the arguments that no capture has as an input."""
    tensors, others, caches = {}, {}, []
    for name, value in named.items():
        if type(value) is torch.Tensor:
            tensors[name] = value
        elif type(value) in _SCALARS:
            others[name] = value
        elif isinstance(value, cache_class):
            caches.append((name, value))
        else:
            inside: list[torch.Tensor] = []
            others[name] = _nested(value, inside)
            if others[name] is None:
                return None
            tensors |= {f"{name}.{number}": tensor for number, tensor in enumerate(inside)}
    tokens = next((name for name in MASKS if name in tensors), None)
    if tokens is None or len(caches) != 1:
        return None
    return Inputs({tokens: tensors.pop(tokens), **tensors}, others, *caches[0])


def _nested(value, tensors: list[torch.Tensor]) -> Nested | None:
    """Its tensors are appended to `tensors`."""
    if isinstance(value, dict):
        names, values = tuple(value), value.values()
    elif type(value) in (tuple, list):
        names, values = None, value
    else:
        return None
    parts = [_part(each, tensors) for each in values]
    if any(part is _UNKNOWN for part in parts) or not all(type(n) is str for n in names or ()):
        return None
    return Nested(type(value), names, tuple(parts))


def _part(value, tensors: list[torch.Tensor]):
    """_UNKNOWN: something that is no tensor, number or string."""
    if type(value) is torch.Tensor:
        tensors.append(value)
        return _TENSOR
    if type(value) in _SCALARS:
        return value
    return _nested(value, tensors) or _UNKNOWN
