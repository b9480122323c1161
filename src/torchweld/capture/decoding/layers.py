"""Layers of transformers' caches: which of them a Store stands in for, and what becomes of them
meanwhile.

Imported only where transformers is, since its classes are extended here.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence

import torch
from transformers import cache_utils

from torchweld.capture.decoding.store import Layout, Part, Pool, Store, last

_STORE = "_torchweld_store"
PAIR = cache_utils.EncoderDecoderCache
STATES = cache_utils.LinearAttentionLayer


def members(cache) -> list:
    """The caches that it consists of: of a decoder itself, and of what it reads of its encoder."""
    pair = isinstance(cache, PAIR)
    return [cache.self_attention_cache, cache.cross_attention_cache] if pair else [cache]


def is_known(cache) -> bool:
    """Its layers are where the classes of transformers keep them."""
    return all(isinstance(getattr(each, "layers", None), list) for each in members(cache))


def kinds(cache) -> tuple[tuple[type, ...], ...]:
    return tuple(tuple(map(type, each.layers)) for each in members(cache))


def is_empty(cache) -> bool:
    return not any(_is_filled(layer) for each in members(cache) for layer in each.layers)


def _is_filled(layer) -> bool:
    attends = getattr(layer, "is_initialized", False)
    return attends or any(getattr(layer, "has_previous_state", {}).values())


def takes_first_states(cache) -> bool:
    """An empty layer of each of its kinds hands on the very states that it is given first."""
    each = [type(layer) for one in members(cache) for layer in one.layers]
    each += [one.layer_class_to_replicate for one in members(cache) if not one.layers]
    records = any(getattr(x, "record_past", False) for one in members(cache) for x in one.layers)
    return not records and all(
        kind in _SOURCES or issubclass(kind, cache_utils.QuantizedLayer) for kind in each
    )


def has_states(cache) -> bool:
    return STATES in kinds(cache)[0]


def steps_when_empty(cache) -> bool:
    """A step may be the first that fills it, once the sizes of its layers are known."""
    return not isinstance(cache, PAIR) and not getattr(cache, "offloading", False) and all(
        kind in _HELD for kind in kinds(cache)[0] or [cache.layer_class_to_replicate]
    )


def layouts_of(cache) -> tuple[Layout, ...] | None:
    """Of a cache that was filled just now; None where its first call is never a step."""
    if not steps_when_empty(cache) or any(layer.keys is None for layer in cache.layers):
        return None
    return tuple(Layout.of(layer.keys, layer.values) for layer in cache.layers)


def initialise(cache, layouts: tuple[Layout, ...], batch: int) -> None:
    """Its layers, with no positions yet."""
    while len(cache.layers) < len(layouts):
        cache.layers.append(cache.layer_class_to_replicate())
    for layer, layout in zip(cache.layers, layouts):
        keys, values = (
            torch.empty((batch, layout.heads, 0, size), dtype=layout.dtype, device=layout.device)
            for size in (layout.key_size, layout.value_size)
        )
        layer.lazy_initialization(keys, values)
        if type(layer) in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer):
            layer.keys, layer.values = keys, values


# -- a prompt


def fill(cache, names: tuple, states: Sequence[torch.Tensor]) -> None:
    """Gives an empty cache its first states, named as `traced_layers.names_of` does."""
    left = iter(states)
    for each, of_layers in zip(members(cache), names):
        for number, of_layer in enumerate(of_layers):
            tensors = [next(left) for _ in of_layer]
            if of_layer == ("keys", "values"):
                each.update(*tensors, number)
            elif of_layer:
                _fill_states(each.layers[number], of_layer, tensors)
    if isinstance(cache, PAIR):
        cache.is_updated.update({at: bool(name) for at, name in enumerate(names[1])})


def _fill_states(layer, names: tuple, tensors: list[torch.Tensor]) -> None:
    for (name, number), tensor in zip(names, tensors):
        conv = name == "conv_states"
        (layer.update_conv_state if conv else layer.update_recurrent_state)(tensor, number)


# -- a step


class _Held:
    """The methods of a layer whose keys and values are a store's. Who asks for them gets them, and
    then the layer, like the others of its cache, is of its own class again."""

    def __deepcopy__(self, memo):
        return copy.deepcopy(release(self), memo)

    def __reduce_ex__(self, protocol):
        return release(self).__reduce_ex__(protocol)


def _released(name: str) -> property:
    """An attribute that is as it would be once the layer is released."""

    def get(self):
        return getattr(release(self), name)

    def set_(self, value) -> None:
        setattr(release(self), name, value)

    return property(get, set_)


def _counted(name: str) -> property:
    """An attribute that is the number of positions."""
    return property(lambda self: vars(self)[_STORE].length, _released(name).fset)


def _held(kind: type) -> type:
    """A subclass of a class of layers. Their objects may change from one to the other, which Python
    allows only where it is the one base."""
    body = {name: value for name, value in vars(_Held).items() if name not in vars(_Empty)}
    body |= {"__reduce_ex__": _Held.__reduce_ex__, "_layer_type": None, "PLAIN": kind}
    body |= {name: _released(name) for name in ("keys", "values")}
    if issubclass(kind, cache_utils.StaticLayer):
        body["cumulative_length"] = _released("cumulative_length")
    if kind is cache_utils.DynamicSlidingWindowLayer:
        body["cumulative_length"] = _counted("cumulative_length")
    if kind is cache_utils.StaticSlidingWindowLayer:
        body["cumulative_length_int"] = _counted("cumulative_length_int")
    on_device = kind is cache_utils.StaticLayer
    body["get_seq_length"] = _length_on_device if on_device else _length
    if hasattr(kind, "activate_past_recording"):
        body["activate_past_recording"] = lambda self: release(self).activate_past_recording()
    return type(kind)(f"Held{kind.__name__}", (kind,), body)


def _length(self) -> int:
    return vars(self)[_STORE].length


def _length_on_device(self) -> torch.Tensor:
    return vars(self)[_STORE].room.length


class _Empty:
    """What every class has."""


def _grows(layer) -> Layout | None:
    if getattr(layer, "record_past", False):
        return None
    return Layout.of(layer.keys, layer.values, getattr(layer, "sliding_window", None))


def _is_fixed(layer) -> Part:
    kind = "ring" if layer.is_sliding else "full"
    return Part(kind, (layer.keys, layer.values), layer.max_cache_len if layer.is_sliding else None)


def _has_states(layer) -> Part | None:
    return None if layer.record_past else Part("states", tuple(states_of(layer).values()))


# What a store has of a filled layer of a class. No subclass: its code may be another.
_SOURCES: dict[type, Callable] = {
    cache_utils.DynamicLayer: _grows,
    cache_utils.DynamicSlidingWindowLayer: _grows,
    cache_utils.StaticLayer: _is_fixed,
    cache_utils.StaticSlidingWindowLayer: _is_fixed,
    STATES: _has_states,
}
_HELD = {kind: _held(kind) for kind in _SOURCES if kind is not STATES}


def states_of(layer) -> dict[tuple[str, int], torch.Tensor]:
    """The tensors of a layer with states, by where they are."""
    return {
        (name, number): tensor
        for name in ("conv_states", "recurrent_states")
        for number, tensor in getattr(layer, name).items()
        if tensor is not None
    }


_stores: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def store_of(cache) -> Store | None:
    """That of a cache, if the tensors that it shares are still the cache's."""
    store = _stores.get(cache)
    if store is None or store.room is None or not all(map(_is_shared, store.shared)):
        return None
    return store


def _is_shared(pair: tuple) -> bool:
    layer, part = pair
    if part.kind == "read":
        return layer.keys is part.tensors[0] and layer.values is part.tensors[1]
    now = states_of(layer).values()
    return len(now) == len(part.tensors) and all(x is y for x, y in zip(now, part.tensors))


def hold(cache, pool: Pool, more: int) -> Store | None:
    """A store for a filled cache with room for `more`; None where there can be none."""
    caches = members(cache)
    for layer in (layer for each in caches for layer in each.layers):
        if _STORE in vars(layer):
            release(layer)
    own, sources, length = caches[0].layers, _sources(cache, caches), _length_of(caches[0].layers)
    if sources is None or length is None or not own:
        return None
    growing = [layer for layer, source in zip(own, sources[0]) if isinstance(source, Layout)]
    tensors = [t for each in caches for layer in each.layers for t in _tensors(layer)]
    store = Store(sources, tensors[0].shape[0], tensors[0].device, pool)
    store.fill([(layer.keys, layer.values) for layer in growing], length, more)
    store.shared = [
        (layer, source) for each, parts in zip(caches, sources)
        for layer, source in zip(each.layers, parts)
        if isinstance(source, Part) and source.kind in ("read", "states")
    ]  # fmt: skip
    for layer in own:
        if type(layer) in _HELD:
            _take_over(layer, store)
    store.layers = [weakref.ref(layer) for layer in own]
    _stores[cache] = store
    return store


def _tensors(layer) -> tuple[torch.Tensor, ...]:
    return tuple(states_of(layer).values()) if type(layer) is STATES else (layer.keys,)


def _sources(cache, caches: list) -> tuple[tuple[Layout | Part, ...], ...] | None:
    sources = [tuple(map(_source, caches[0].layers))]
    for other in caches[1:]:  # of an encoder: read alone, once it is filled
        sources.append(tuple(map(_read, other.layers)))
        if not all(map(cache.is_updated.get, range(len(other.layers)))):
            return None
    # with `offloading`, the layers are on the host between calls
    if any(getattr(each, "offloading", False) for each in caches):
        return None
    return None if any(x is None for parts in sources for x in parts) else tuple(sources)


def _source(layer) -> Layout | Part | None:
    find = _SOURCES.get(type(layer))
    ready = type(layer) is STATES or layer.is_initialized
    return find(layer) if find is not None and ready else None


def _read(layer) -> Part | None:
    ready = type(layer) in _HELD and layer.is_initialized
    return Part("read", (layer.keys, layer.values)) if ready else None


def _length_of(own: list) -> int | None:
    """Of layers that all have as many positions; 0 where none has any."""
    lengths = [layer.get_seq_length() for layer in own if type(layer) in _HELD]
    known = {length for length in lengths if isinstance(length, int)}
    if lengths and not known:
        known = {int(lengths[0])}  # waits for the device, once for a cache
    return None if len(known) > 1 else next(iter(known), 0)


def _take_over(layer, store: Store) -> None:
    if isinstance(layer, cache_utils.StaticLayer):
        _rotate(layer, store.length)
    else:
        layer.keys = layer.values = None
    vars(layer)[_STORE] = store
    layer.__class__ = _HELD[type(layer)]


def release(layer):
    """`layer`, of its own class again, and the others of its store: the room is theirs."""
    give_up(vars(layer)[_STORE])
    return layer


def give_up(store: Store) -> None:
    """Its cache's layers are as they would be without it."""
    for number, find in enumerate(store.layers):
        one = find()
        if one is not None and _STORE in vars(one):
            _release(one, store, store.part(number).tensors)
    store.layers = []
    store.give_away()


def _release(layer, store: Store, tensors: tuple[torch.Tensor, ...]) -> None:
    del vars(layer)[_STORE]
    layer.__class__, length = layer.PLAIN, store.length
    if isinstance(layer, cache_utils.StaticLayer):
        with torch.inference_mode():  # where it may have been made
            layer.cumulative_length.fill_(min(length, layer.max_cache_len))
        if layer.is_sliding:
            layer.cumulative_length_int = length
        _rotate(layer, -length)
        return
    count = length
    if layer.is_sliding:
        layer.cumulative_length, count = length, min(length, layer.sliding_window - 1)
    layer.keys, layer.values = (last(tensor, count, length) for tensor in tensors)


def _rotate(layer, length: int) -> None:
    """A static layer's tensors of a window that is full, from the order of positions to that of
    slots: position p in slot p modulo their number. With `-length` back again."""
    slots = layer.max_cache_len
    if layer.is_sliding and abs(length) > slots and length % slots:
        with torch.inference_mode():
            for tensor in (layer.keys, layer.values):
                tensor.copy_(tensor.roll(length % slots, 2))
