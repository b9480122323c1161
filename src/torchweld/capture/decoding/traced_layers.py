"""Layers of transformers' caches during a capture.

Imported only where transformers is, since its classes are extended here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from transformers import cache_utils

from torchweld.capture.decoding import layers
from torchweld.capture.decoding.store import Part


class _Traced(cache_utils.CacheLayerMixin):
    """What a layer is during a capture."""

    is_sliding = False

    def lazy_initialization(self, *states) -> None:
        """There is nothing to be made."""

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class Fresh(_Traced):
    """An empty layer: it keeps what it is given, and that alone is read."""

    def __init__(self, is_sliding: bool = False) -> None:
        super().__init__()
        self.is_sliding = is_sliding

    def update(self, key_states, value_states, *args, **kwargs):
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0


class Full(_Traced):
    """A layer with a capacity, of which `length` positions are filled."""

    def __init__(self, template, part: Part, tensors: Sequence, length) -> None:
        super().__init__()
        (self.keys, self.values), self.length = tensors, length
        self.is_initialized, self.window = True, part.window

    def update(self, key_states, value_states, *args, **kwargs):
        self._write(torch.arange(key_states.shape[2], device=self.length.device) + self.length,
                    key_states, value_states)  # fmt: skip
        return self.keys, self.values

    def _write(self, at, key_states, value_states) -> None:
        self.keys.index_copy_(2, at, key_states)
        self.values.index_copy_(2, at, value_states)
        self.length = self.length + key_states.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self):
        return self.length


class Read(Full):
    """Keys and values of an encoder: all there."""

    def __init__(self, template, part: Part, tensors: Sequence, length) -> None:
        super().__init__(template, part, tensors, tensors[0].shape[2])


class Ring(Full):
    """A layer of which the last positions alone are kept: position p in slot p modulo their
    number."""

    is_sliding = True

    def _wraps(self, new) -> bool:
        """Several tokens may go over the end: their queries read what they overwrite."""
        return new != 1 and self.keys.shape[2] == self.window

    def update(self, key_states, value_states, *args, **kwargs):
        new, slots = key_states.shape[2], self.keys.shape[2]
        if self._wraps(new):
            return self._around(key_states, value_states)
        at = torch.arange(new, device=self.length.device) + self.length
        self._write(at % slots, key_states, value_states)
        return self.keys, self.values

    def _around(self, key_states, value_states):
        """Both the slots as they were and the new states, which then go to their slots."""
        new, slots = key_states.shape[2], self.keys.shape[2]
        number = torch.arange(slots, device=self.length.device)
        position = self._positions(self.length + new - 1)
        source = torch.where(position >= self.length, position - self.length + slots, number)
        whole = [
            torch.cat(pair, 2)
            for pair in ((self.keys, key_states), (self.values, value_states))
        ]
        for ours, all_states in zip((self.keys, self.values), whole):
            ours.copy_(all_states.index_select(2, source))
        self.length = self.length + new
        return tuple(whole)

    def _positions(self, newest):
        """What is in each slot; negative: nothing yet."""
        slots = self.keys.shape[2]
        return newest - (newest - torch.arange(slots, device=self.length.device)) % slots

    def get_mask_sizes(self, query_length: int) -> tuple:
        slots, device = self.keys.shape[2], self.length.device
        if not self._wraps(query_length):
            newest = self.length + query_length - 1
            at = self._positions(newest)
            return slots, _Offset(torch.where(at < 0, at + slots, at))  # later than every query
        at = self._positions(self.length - 1)
        at = torch.where(at < 0, self.length - self.window, at)  # before every query's window
        new = torch.arange(query_length, device=device) + self.length
        return slots + query_length, _Offset(torch.cat([at, new]))


class _Offset:
    """What is added to the numbers of keys, 0, 1 and so on, gives their positions, in any order. As
    a number, where transformers asks how long a mask must be, it is zero: it is long enough."""

    def __init__(self, positions: torch.Tensor) -> None:
        self._positions = positions

    def __radd__(self, other):
        return self._positions if isinstance(other, torch.Tensor) else other


def _states(template, part: Part | None, tensors: Sequence, length):
    """The layer's own code, on these tensors. `template`: the layer."""
    traced = copy.copy(template)
    for name, value in vars(template).items():
        if isinstance(value, dict):
            setattr(traced, name, dict(value))
    for (name, number), tensor in zip(layers.states_of(template), tensors):
        getattr(traced, name)[number] = tensor
    return traced


# Of a Part's kind: makes the layer of a trace from the cache's own, the part, its tensors
# and the length.
TRACED: dict[str, Callable] = {"full": Full, "ring": Ring, "read": Read, "states": _states}


def _fresh(layer):
    return _states(layer, None, (), 0) if type(layer) is layers.STATES else Fresh(layer.is_sliding)


def fresh(cache) -> list[list]:
    """For each of its caches, the layers of a trace in which it is empty."""
    return [list(map(_fresh, each.layers)) for each in layers.members(cache)]


def with_layers(cache, made: list[list]):
    """A copy of a cache with these layers."""
    copies = list(map(copy.copy, layers.members(cache)))
    for each, its in zip(copies, made):
        each.layers, each.offloading = its, False  # what is kept elsewhere is not seen here
        if not its:
            each.layer_class_to_replicate = Fresh
    if not isinstance(cache, layers.PAIR):
        return copies[0]
    pair = copy.copy(cache)
    pair.self_attention_cache, pair.cross_attention_cache = copies
    pair.is_updated = dict(cache.is_updated)
    return pair


def names_of(made: list[list]) -> tuple[tuple[tuple, ...], ...]:
    """Where traced layers that were empty have their tensors."""
    return tuple(tuple(map(_names, its)) for its in made)


def _names(layer) -> tuple:
    if type(layer) is layers.STATES:
        return tuple(layers.states_of(layer))
    return () if layer.keys is None else ("keys", "values")


def first_states(made: list[list]) -> list[torch.Tensor]:
    """Their tensors, in the order of `names_of`."""
    return [tensor for its in made for layer in its for tensor in _tensors(layer)]


def _tensors(layer) -> tuple:
    if type(layer) is layers.STATES:
        return tuple(layers.states_of(layer).values())
    return () if layer.keys is None else (layer.keys, layer.values)
