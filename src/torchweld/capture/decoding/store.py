"""Memory with room for more positions, in place of a cache that grows.

A growing cache makes all of its keys and values anew for each token, of other sizes each time. Here
they are in tensors of a capacity: a step writes its own positions, and its sizes stay the same
until the room is used up. Nobody else sees this memory: who looks at the cache's own tensors gets
them back (`layers.py`), and the store is no longer used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

_LEAST_ROOM = 64  # positions; a step of decoding reads them all
_SHARE_OF_LENGTH = 4  # beyond that, up to a quarter of the positions is room


def capacity_for(length: int) -> int:
    """Positions to make room for, of which `length` are to be used at once."""
    unit = max(_LEAST_ROOM, (1 << (max(length, 1).bit_length() - 1)) // _SHARE_OF_LENGTH)
    return -(-length // unit) * unit


@dataclass(frozen=True)
class Layout:
    """Of a layer: keys [batch, heads, positions, key size], values likewise."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, keys: torch.Tensor, values: torch.Tensor) -> Layout:
        return cls(keys.shape[1], keys.shape[-1], values.shape[-1], keys.dtype, keys.device)


@dataclass(frozen=True)
class Room:
    """Keys and values [batch, heads, capacity, size] of each layer. `lengths`: how many positions
    are filled, on the device: one for all layers, or one for each. `mask`: [batch, capacity], for
    the padding mask that the caller may give."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    lengths: tuple[torch.Tensor, ...]
    mask: torch.Tensor

    @classmethod
    def make(cls, layouts: Sequence[Layout], batch: int, capacity: int) -> Room:
        def tensor(layout: Layout, size: int) -> torch.Tensor:
            shape = batch, layout.heads, capacity, size
            return torch.zeros(shape, dtype=layout.dtype, device=layout.device)

        device = layouts[0].device
        return cls(
            tuple(tensor(layout, layout.key_size) for layout in layouts),
            tuple(tensor(layout, layout.value_size) for layout in layouts),
            (torch.zeros((), dtype=torch.int64, device=device),),
            torch.zeros((batch, capacity), dtype=torch.int64, device=device),
        )

    @property
    def capacity(self) -> int:
        return self.mask.shape[1]

    def held(self, masked: bool) -> list[torch.Tensor]:
        """All tensors, the mask last, if it counts; the same list each time."""
        return self._all if masked else self._unmasked

    @cached_property
    def _unmasked(self) -> list[torch.Tensor]:
        return [*self.keys, *self.values, *self.lengths]

    @cached_property
    def _all(self) -> list[torch.Tensor]:
        return [*self._unmasked, self.mask]

    def set_mask(self, given: torch.Tensor) -> None:
        """Of the first positions; no token looks at the others."""
        self.mask[:, : given.shape[1]].copy_(given)

    def clear(self) -> Room:
        """Zeros: what is masked is multiplied by zero, which must not meet NaN."""
        for tensor in (*self.keys, *self.values):
            tensor.zero_()
        return self


class Pool:
    """The room that was used last. The next cache of its sizes takes it, so that a recording which
    reads it stays valid. On a GPU only for the same stream, where what reads it still goes first.
    """

    def __init__(self) -> None:
        self._free: deque[tuple[tuple, Room]] = deque(maxlen=1)  # threads may ask at a time

    def take(self, key: tuple, layouts: tuple[Layout, ...], batch: int, least: int) -> Room:
        """Room for at least `least` positions. `key`: of `key_of`."""
        try:
            known, room = self._free.pop()
        except IndexError:
            known, room = None, None
        if known == key and least <= room.capacity <= 2 * least:
            return room.clear()
        with torch.inference_mode(False):  # others write to it later
            return Room.make(layouts, batch, capacity_for(least))

    def give(self, key: tuple, room: Room) -> None:
        self._free.append((key, room))


def key_of(layouts: tuple[Layout, ...], batch: int) -> tuple:
    """Rooms of equal keys may follow each other."""
    device = layouts[0].device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return layouts, batch, stream


class Store:
    """What all layers of one growing cache hold: `length` positions, in `room`."""

    def __init__(self, layouts: tuple[Layout, ...], batch: int, pool: Pool) -> None:
        self.layouts, self.batch, self.length = layouts, batch, 0
        self.layers: list = []  # weak references to those of the cache, while they hold this
        self._pool, self._key = pool, key_of(layouts, batch)
        self.room: Room | None = None

    @property
    def capacity(self) -> int:
        return 0 if self.room is None else self.room.capacity

    def fill(self, keys: Sequence, values: Sequence, length: int, more: int) -> None:
        """Takes over the last positions of `length`, as many as there are of each layer, with room
        for `more`."""
        self.room = self._pool.take(self._key, self.layouts, self.batch, length + more)
        for theirs, ours in zip((*keys, *values), (*self.room.keys, *self.room.values)):
            if theirs is not None:
                ours[:, :, length - theirs.shape[2] : length].copy_(theirs)
        self.length = length
        self.room.lengths[0].fill_(length)

    def reserve(self, more: int) -> None:
        """Room for `more` positions."""
        if self.length + more > self.capacity:
            room = self.room
            used = [t[:, :, : self.length] for t in (*room.keys, *room.values)]
            count = len(room.keys)
            self.fill(used[:count], used[count:], self.length, more)

    def used(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Its keys and values so far, without a copy."""
        room, end = self.room, self.length
        return room.keys[layer][:, :, :end], room.values[layer][:, :, :end]

    def give_away(self) -> None:
        """The room is somebody else's from now on."""
        self.room = None

    def __del__(self) -> None:
        if self.room is not None:
            self._pool.give(self._key, self.room)
