"""Layers of transformers' caches: those that a capture sees, and those that hold a Store.

Imported only where transformers is, since its classes are extended here.
"""

from __future__ import annotations

import copy
import weakref

import torch
from transformers import cache_utils

from torchweld.capture.decoding.store import Layout, Pool, Room, Store

_STORE = "_torchweld_store"


class _Traced(cache_utils.CacheLayerMixin):
    """What a layer is during a capture."""

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


class Slot(_Traced):
    """A layer with a capacity, of which `length` positions are filled."""

    def __init__(self, keys, values, length, is_sliding: bool) -> None:
        super().__init__()
        self.keys, self.values, self.length, self.is_sliding = keys, values, length, is_sliding
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        at = torch.arange(key_states.shape[-2], device=key_states.device) + self.length
        self.keys.index_copy_(2, at, key_states)
        self.values.index_copy_(2, at, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self):
        return self.length


class _Held:
    """The methods of a growing layer whose keys and values are in a Store. Who asks for them gets
    them, and then the layer, like the others of its cache, is of its own class again."""

    @property
    def keys(self):
        return release(self).keys

    @keys.setter
    def keys(self, value) -> None:
        release(self).keys = value

    @property
    def values(self):
        return release(self).values

    @values.setter
    def values(self, value) -> None:
        release(self).values = value

    @property
    def cumulative_length(self) -> int:
        return vars(self)[_STORE].length

    @cumulative_length.setter
    def cumulative_length(self, value: int) -> None:
        release(self).cumulative_length = value

    def get_seq_length(self) -> int:
        return vars(self)[_STORE].length

    def __deepcopy__(self, memo):
        return copy.deepcopy(release(self), memo)

    def __reduce_ex__(self, protocol):
        return release(self).__reduce_ex__(protocol)


def _held(kind: type) -> type:
    """A subclass of a class of layers. Their objects may change from one to the other, which Python
    allows only where it is the one base."""
    body = {name: value for name, value in vars(_Held).items() if name not in vars(_Empty)}
    names = {"__reduce_ex__": _Held.__reduce_ex__, "_layer_type": None, "PLAIN": kind}
    if hasattr(kind, "activate_past_recording"):
        names["activate_past_recording"] = lambda self: release(self).activate_past_recording()
    return type(kind)(f"Held{kind.__name__}", (kind,), body | names)


class _Empty:
    """What every class has."""


_HELD = {
    kind: _held(kind) for kind in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)
}
_STATIC = cache_utils.StaticLayer
_PREFILLED = (
    *_HELD, _STATIC, cache_utils.StaticSlidingWindowLayer, cache_utils.QuantizedLayer,
)  # fmt: skip


def grows(cache) -> bool:
    """Each of its layers grows, and a Store may stand in for it."""
    plain = all(type(layer) in _HELD for layer in cache.layers) and not _offloads(cache)
    return plain and not any(getattr(layer, "record_past", False) for layer in cache.layers)


def is_static(cache) -> bool:
    return all(type(layer) is _STATIC for layer in cache.layers) and not _offloads(cache)


def _offloads(cache) -> bool:
    """It keeps its layers on the host between calls."""
    return getattr(cache, "offloading", False)


def keeps_first_states(cache) -> bool:
    """An empty layer of each of its kinds hands on the very states that it is given first."""
    kinds = [cache.layer_class_to_replicate] if not cache.layers else map(type, cache.layers)
    return all(
        kind in _PREFILLED[:-1] or issubclass(kind, cache_utils.QuantizedLayer) for kind in kinds
    )


def is_empty(cache) -> bool:
    return not any(layer.is_initialized for layer in cache.layers)


def store_of(cache) -> Store | None:
    """The one that its layers hold."""
    layers = cache.layers
    return vars(layers[0]).get(_STORE) if layers else None


def hold(cache, pool: Pool, more: int) -> Store:
    """The keys and values of a cache that grows, moved to a new Store with room for `more`."""
    plain = cache.layers
    keys, values = [layer.keys for layer in plain], [layer.values for layer in plain]
    layouts = tuple(map(Layout.of, keys, values))
    store = Store(layouts, keys[0].shape[0], pool)
    store.fill(keys, values, plain[0].get_seq_length(), more)
    return _held_by(cache, store)


def layouts_of(cache) -> tuple[Layout, ...] | None:
    """Of a cache that was filled in eager; None where its layers have no such tensors."""
    if not all(type(layer) in (*_HELD, _STATIC) for layer in cache.layers):
        return None
    return tuple(Layout.of(layer.keys, layer.values) for layer in cache.layers)


def initialise(cache, layouts: tuple[Layout, ...], batch: int) -> None:
    """Its layers, as a first call would make them for these."""
    while len(cache.layers) < len(layouts):
        cache.layers.append(cache.layer_class_to_replicate())
    for layer, layout in zip(cache.layers, layouts):
        keys, values = (
            torch.empty((batch, layout.heads, 0, size), dtype=layout.dtype, device=layout.device)
            for size in (layout.key_size, layout.value_size)
        )
        layer.lazy_initialization(keys, values)


def hold_nothing(cache, layouts: tuple[Layout, ...], batch: int, pool: Pool, more: int) -> Store:
    """A Store for a cache of no positions yet."""
    store = Store(layouts, batch, pool)
    store.fill([None] * len(layouts), [None] * len(layouts), 0, more)
    return _held_by(cache, store)


def room_of(cache) -> Room:
    """The tensors of a static cache."""
    layers, keys = cache.layers, cache.layers[0].keys
    with torch.inference_mode(False):
        mask = torch.zeros((keys.shape[0], keys.shape[2]), dtype=torch.int64, device=keys.device)
    return Room(
        tuple(layer.keys for layer in layers), tuple(layer.values for layer in layers),
        tuple(layer.cumulative_length for layer in layers), mask,
    )  # fmt: skip


def is_of(room: Room, cache) -> bool:
    """It still has these tensors."""
    return all(
        layer.keys is keys and layer.values is values and layer.cumulative_length is length
        for layer, keys, values, length in zip(cache.layers, room.keys, room.values, room.lengths)
    )


def _held_by(cache, store: Store) -> Store:
    for layer in cache.layers:
        for name in ("keys", "values", "cumulative_length"):
            vars(layer).pop(name, None)
        vars(layer)[_STORE] = store
        layer.__class__ = _HELD[type(layer)]
    store.layers = [weakref.ref(layer) for layer in cache.layers]
    return store


def release(layer):
    """`layer`, of its own class again, and the others of its store: the room is theirs."""
    store = vars(layer)[_STORE]
    for number, find in enumerate(store.layers):
        if (one := find()) is not None:
            _release(one, store, *store.used(number))
    store.layers = []
    store.give_away()
    return layer


def _release(layer, store: Store, keys: torch.Tensor, values: torch.Tensor) -> None:
    del vars(layer)[_STORE]
    layer.__class__ = layer.PLAIN
    if layer.is_sliding:
        layer.cumulative_length = store.length
        last = slice(1 - layer.sliding_window, None)
        keys, values = keys[:, :, last], values[:, :, last]
    layer.keys, layer.values = keys, values
